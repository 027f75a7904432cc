import { test } from 'vitest';
import { killWriters } from './killed-writers.ts';

const ROUNDS = Number(process.env['STORE_KILL_ROUNDS'] ?? 10);

test(
  `S17 writes acknowledged before SIGKILL are in the store afterwards, ${ROUNDS} times`,
  {
    timeout: 600_000,
  },
  () => killWriters(ROUNDS),
);
