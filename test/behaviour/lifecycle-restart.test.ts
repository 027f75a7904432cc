import { expect, test } from 'vitest';
import { connect, isAlive, type ServeProcess, until } from '../support/serve-process.ts';
import { count, ready, restartWorkers, startWorkers, underLoad } from './restarted-workers.ts';

/** Changes something, and waits until both workers have logged this event about it. */
async function both(server: ServeProcess, event: string, change: () => void): Promise<void> {
  const from = server.log.length;
  change();
  await until(`${event} of both workers`, () => {
    const lines = server.log.slice(from).filter((line) => line.event === event);
    return new Set(lines.map((line) => line['worker'])).size === 2;
  });
}

test('O04 SIGUSR2 replaces the workers one by one under load, over HTTP/1.1 and HTTP/2, and no request fails', () =>
  restartWorkers(1));

test('O04 when a new worker cannot start the old ones stay, and the next restart works', async () => {
  const { folder, server } = await startWorkers();
  const load = await underLoad(folder, server);
  await both(server, 'reload_refused', () => folder.write('ca.pem', 'not a certificate'));
  server.signal('SIGUSR2');
  await until('it is given up', () => count(server, 'worker_not_replaced') === 1, 60);
  expect(server.workers.every(isAlive)).toBe(true);
  await ready(server);
  await load.more(50);

  folder.write('ca.pem', folder.ca.pem);
  server.signal('SIGUSR2');
  await until('all are replaced', () => count(server, 'workers_restarted') === 1, 60);
  await load.more(50);
  await load.stop();
  expect(load.failures).toEqual([]);
});

test('O05 a worker started while the configuration is invalid uses the last valid one, and follows later changes', async () => {
  const { folder, server } = await startWorkers();
  const routeTo = (path: string) => (): void =>
    folder.configure((settings) => ({ ...settings, routes: [{ path, public: true }] }));
  await both(server, 'reloaded', routeTo('/second'));
  await both(server, 'reload_refused', () => folder.write('gatehouse.yaml', 'listen: [this is: not valid'));

  const [victim = 0] = server.workers;
  process.kill(victim, 'SIGKILL');
  await until('it is missed', () => count(server, 'worker_ended') === 1);
  await ready(server);
  for (let index = 0; index < 6; index += 1) {
    const client = connect(folder, server.port);
    expect((await client.ask({ path: '/second' })).status).toBe(200);
    client.close();
  }
  await both(server, 'reloaded', routeTo('/fourth'));
  const client = connect(folder, server.port);
  expect((await client.ask({ path: '/fourth' })).status).toBe(200);
  client.close();
  expect(await server.stop()).toBe(0);
});

test('O06 a changed setting that is read at start is applied by new workers, under load', async () => {
  const { folder, server } = await startWorkers();
  const load = await underLoad(folder, server);
  const ask = async (): Promise<number> => {
    const client = connect(folder, server.port);
    const { status } = await client.ask({ path: `/health?${'a'.repeat(2_000)}` });
    client.close();
    return status;
  };
  expect(await ask()).toBe(200);
  folder.configure((settings) => ({ ...settings, limits: { ...settings.limits, url: '1KiB' } }));
  await until('all are replaced', () => count(server, 'workers_restarted') === 1, 60);
  expect([await ask(), await ask(), await ask()]).toEqual([414, 414, 414]);
  await load.more(50);
  await load.stop();
  expect(load.failures).toEqual([]);
  expect(count(server, 'workers_restarting')).toBe(1);
});
