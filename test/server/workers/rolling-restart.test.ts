import { test } from 'vitest';
import { restartWorkers } from './restart-under-load.ts';

test('O04 SIGUSR2 replaces the workers one by one under load, over HTTP/1.1 and HTTP/2, and no request fails', () =>
  restartWorkers(1));
