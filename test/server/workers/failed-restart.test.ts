import { expect, test } from 'vitest';
import { connect, isAlive, until } from '../../support/serve-process.ts';
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

test('O05 a worker started while the configuration is invalid uses the last valid one, and follows later changes', async () => {
  const { folder, server } = await startWorkers();
  const routeTo = (path: string) => (): void =>
    folder.configure((settings) => ({ ...settings, routes: [{ path, public: true }] }));
  await waitForBothWorkers(server, 'reloaded', routeTo('/second'));
  await waitForBothWorkers(server, 'reload_rejected', () =>
    folder.write('gatehouse.yaml', 'listen: [this is: not valid'),
  );

  const [victim = 0] = server.workers;
  process.kill(victim, 'SIGKILL');
  await until('the supervisor has noticed the exit', () => countEvents(server, 'worker_exited') === 1);
  await waitUntilReady(server);
  for (let index = 0; index < 6; index += 1) {
    const client = connect(folder, server.port);
    expect((await client.request({ path: '/second' })).status).toBe(200);
    client.close();
  }
  await waitForBothWorkers(server, 'reloaded', routeTo('/fourth'));
  const client = connect(folder, server.port);
  expect((await client.request({ path: '/fourth' })).status).toBe(200);
  client.close();
  expect(await server.stop()).toBe(0);
});
