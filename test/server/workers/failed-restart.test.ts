import { expect, test } from 'vitest';
import { connect, isAlive, until } from '../../support/serve-process.ts';
import { count, eachWorker, ready, startWorkers, underLoad } from './restart-under-load.ts';

test('O04 when a new worker cannot start the old ones stay, and the next restart works', async () => {
  const { folder, server } = await startWorkers();
  const load = await underLoad(folder, server);
  await eachWorker(server, 'reload_rejected', () => folder.write('ca.pem', 'not a certificate'));
  server.signal('SIGUSR2');
  await until('it is given up', () => count(server, 'worker_replace_failed') === 1, 60);
  expect(server.workers.every(isAlive)).toBe(true);
  await ready(server);
  await load.waitForMore(50);

  folder.write('ca.pem', folder.ca.pem);
  server.signal('SIGUSR2');
  await until('all are replaced', () => count(server, 'workers_restarted') === 1, 60);
  await load.waitForMore(50);
  await load.stop();
  expect(load.failures).toEqual([]);
});

test('O05 a worker started while the configuration is invalid uses the last valid one, and follows later changes', async () => {
  const { folder, server } = await startWorkers();
  const routeTo = (path: string) => (): void =>
    folder.configure((settings) => ({ ...settings, routes: [{ path, public: true }] }));
  await eachWorker(server, 'reloaded', routeTo('/second'));
  await eachWorker(server, 'reload_rejected', () =>
    folder.write('gatehouse.yaml', 'listen: [this is: not valid'),
  );

  const [victim = 0] = server.workers;
  process.kill(victim, 'SIGKILL');
  await until('it is missed', () => count(server, 'worker_exited') === 1);
  await ready(server);
  for (let index = 0; index < 6; index += 1) {
    const client = connect(folder, server.port);
    expect((await client.request({ path: '/second' })).status).toBe(200);
    client.close();
  }
  await eachWorker(server, 'reloaded', routeTo('/fourth'));
  const client = connect(folder, server.port);
  expect((await client.request({ path: '/fourth' })).status).toBe(200);
  client.close();
  expect(await server.stop()).toBe(0);
});
