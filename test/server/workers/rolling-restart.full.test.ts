import { test } from 'vitest';
import { restartWorkers } from './restart-under-load.ts';

const RESTARTS = Number(process.env['WORKER_RESTARTS'] ?? 5);

test(
  `O04 no request fails during ${RESTARTS} restarts of the workers under heavier load`,
  () => restartWorkers(RESTARTS, { http1: 6, http2: 2 }),
  120_000 + RESTARTS * 30_000,
);
