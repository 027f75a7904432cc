import { expect, test } from 'vitest';
import { isAlive, until } from '../../support/serve-process.ts';
import {
  countEvents,
  startWorkerLoad,
  startWorkers,
  waitForBothWorkers,
  waitUntilReady,
} from './restart-under-load.ts';

test('O04 if a new worker cannot start, the old ones keep serving, and the next restart works', async () => {
  const { folder, server } = await startWorkers();
  const load = await startWorkerLoad(folder, server);
  await waitForBothWorkers(server, 'reload_rejected', () => folder.write('ca.pem', 'not a certificate'));
  server.signal('SIGUSR2');
  await until('the restart has failed', () => countEvents(server, 'worker_replace_failed') === 1, 60);
  expect(server.workers.every(isAlive)).toBe(true);
  await waitUntilReady(server);
  await load.waitForMore(50);

  folder.write('ca.pem', folder.ca.pem);
  server.signal('SIGUSR2');
  await until('all workers are replaced', () => countEvents(server, 'workers_restarted') === 1, 60);
  await load.waitForMore(50);
  await load.stop();
  expect(load.failures).toEqual([]);
});
