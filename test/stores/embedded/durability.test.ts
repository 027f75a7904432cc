import { test } from 'vitest';
import { killWriters } from './killed-writers.ts';

test('S17 writes acknowledged before SIGKILL are in the store afterwards', () => killWriters(2));
