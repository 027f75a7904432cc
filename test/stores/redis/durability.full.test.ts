import { test } from 'vitest';
import { partitionAndPromote } from './replicated-redis.ts';

const ROUNDS = Number(process.env['ROUNDS'] ?? 20);

test.for(Array.from({ length: ROUNDS }, (_, round) => round + 1))(
  'S08 a partition and promotion lose no acknowledged write, round %i',
  partitionAndPromote,
);
