import { afterEach, expect, test } from 'vitest';
import {
  connect,
  isAlive,
  makeServeFolder,
  readiness,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';
import { type SteadyLoad, steadyLoad } from '../support/steady-load.ts';

let folder: ServeFolder;
let load: SteadyLoad | undefined;

afterEach(async () => {
  await load?.stop();
  load = undefined;
  await folder?.remove();
});

async function start(): Promise<ServeProcess> {
  folder = await makeServeFolder((settings) => ({
    ...settings,
    listen: { ...settings.listen, workers: 2 },
    shutdown: { preStop: '0s', drain: '10s' },
    log: { level: 'info', access: { enabled: false } },
  }));
  return startServe(folder);
}

async function underLoad(server: ServeProcess): Promise<SteadyLoad> {
  const client = connect(folder, server.port, folder.alice);
  const { access_token: token } = await client.grant();
  client.close();
  load = steadyLoad({ port: server.port, ca: folder.ca.pem, path: '/files/1', token });
  await load.more(100);
  return load;
}

/** A process that a busy machine has just held up says so for a moment. */
const ready = (server: ServeProcess): Promise<boolean> =>
  until('it is ready', async () => (await readiness(server)) === 200, 30);

const count = (server: ServeProcess, event: string): number =>
  server.log.filter((line) => line.event === event).length;

test('O04 SIGUSR2 replaces the workers one by one under load, over HTTP/1.1 and HTTP/2, and no request fails', async () => {
  const server = await start();
  const steady = await underLoad(server);
  for (let round = 1; round <= 2; round += 1) {
    server.signal('SIGUSR2');
    await until('all are replaced', () => count(server, 'workers_restarted') === round, 60);
    await ready(server);
    await steady.more(200);
  }
  await steady.stop();
  expect(steady.failures).toEqual([]);
  expect(server.workers.filter(isAlive)).toEqual([]);
  expect(count(server, 'worker_ended')).toBe(0);
  expect(await server.stop()).toBe(0);
});

test('O04 a worker that cannot start leaves the old ones as they are, and the next try works', async () => {
  const server = await start();
  const steady = await underLoad(server);
  folder.write('ca.pem', 'not a certificate');
  await until('the old ones refuse it', () => count(server, 'reload_refused') >= 2);
  server.signal('SIGUSR2');
  await until('it is given up', () => count(server, 'worker_not_replaced') === 1, 60);
  expect(server.workers.every(isAlive)).toBe(true);
  await ready(server);
  await steady.more(100);

  folder.write('ca.pem', folder.ca.pem);
  server.signal('SIGUSR2');
  await until('all are replaced', () => count(server, 'workers_restarted') === 1, 60);
  await steady.more(100);
  await steady.stop();
  expect(steady.failures).toEqual([]);
});

test('O05 a worker that is started while the file is broken begins with what it said before, and follows it again', async () => {
  const server = await start();
  folder.configure((settings) => ({ ...settings, routes: [{ path: '/second', public: true }] }));
  await until('both have the second configuration', () => count(server, 'reloaded') >= 2);
  folder.write('gatehouse.yaml', 'listen: [this is: not sound');
  await until('both refuse the third', () => count(server, 'reload_refused') >= 2);

  const [victim = 0] = server.workers;
  process.kill(victim, 'SIGKILL');
  await until('it is missed', () => count(server, 'worker_ended') === 1);
  await ready(server);
  for (let index = 0; index < 6; index += 1) {
    const client = connect(folder, server.port);
    expect((await client.ask({ path: '/second' })).status).toBe(200);
    client.close();
  }
  const before = count(server, 'reloaded');
  folder.configure((settings) => ({ ...settings, routes: [{ path: '/fourth', public: true }] }));
  await until('both have the fourth', () => count(server, 'reloaded') >= before + 2);
  const client = connect(folder, server.port);
  expect((await client.ask({ path: '/fourth' })).status).toBe(200);
  client.close();
  expect(await server.stop()).toBe(0);
});

test('O06 a changed setting that is read at start comes into force by new workers, under load', async () => {
  const server = await start();
  const steady = await underLoad(server);
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
  await steady.more(100);
  await steady.stop();
  expect(steady.failures).toEqual([]);
  expect(count(server, 'workers_restarting')).toBe(1);
});
