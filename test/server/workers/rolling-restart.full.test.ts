import { test } from 'vitest';
import { restartWorkers } from './restart-under-load.ts';

test(
  'O04 no request fails during five restarts of the workers under heavier load',
  () => restartWorkers(5, { http1: 6, http2: 2 }),
  240_000,
);
