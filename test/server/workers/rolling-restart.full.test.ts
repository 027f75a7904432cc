import { test } from 'vitest';
import { restartWorkers } from './restart-under-load.ts';

test(
  'O04 five restarts of the workers under heavier load, and no request fails',
  () => restartWorkers(5, { http1: 6, http2: 2 }),
  240_000,
);
