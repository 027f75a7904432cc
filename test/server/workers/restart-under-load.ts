import { expect, onTestFinished } from 'vitest';
import {
  connect,
  createServeFolder,
  isAlive,
  readiness,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../../support/serve-process.ts';
import { type LoadOptions, type SteadyLoad, startSteadyLoad } from '../../support/steady-load.ts';

/** The program with two workers, for one test. */
export async function startWorkers(): Promise<{ folder: ServeFolder; server: ServeProcess }> {
  const folder = await createServeFolder((settings) => ({
    ...settings,
    listen: { ...settings.listen, workers: 2 },
    shutdown: { preStop: '0s', drain: '10s' },
    log: { level: 'info', access: { enabled: false } },
  }));
  onTestFinished(() => folder.remove());
  return { folder, server: await startServe(folder) };
}

/** A few clients over HTTP/1.1 and HTTP/2. */
export async function underLoad(
  folder: ServeFolder,
  server: ServeProcess,
  clients: Pick<LoadOptions, 'http1' | 'http2' | 'pauseMs'> = { http1: 2, http2: 1, pauseMs: 10 },
): Promise<SteadyLoad> {
  const client = connect(folder, server.port, folder.alice);
  const { access_token: token } = await client.grant();
  client.close();
  const load = startSteadyLoad({ port: server.port, ca: folder.ca.pem, path: '/files/1', token, ...clients });
  onTestFinished(() => load.stop());
  await load.waitForMore(50);
  return load;
}

export const ready = (server: ServeProcess): Promise<boolean> =>
  until('it is ready', async () => (await readiness(server)) === 200, 30);

export const count = (server: ServeProcess, event: string): number =>
  server.log.filter((line) => line.event === event).length;

/** Changes something, and waits until both workers have logged this event about it. */
export async function eachWorker(server: ServeProcess, event: string, change: () => void): Promise<void> {
  const from = server.log.length;
  change();
  await until(`${event} of both workers`, () => {
    const lines = server.log.slice(from).filter((line) => line.event === event);
    return new Set(lines.map((line) => line['worker'])).size === 2;
  });
}

/** SIGUSR2 under load, so many times. */
export async function restartWorkers(
  rounds: number,
  clients?: Parameters<typeof underLoad>[2],
): Promise<void> {
  const { folder, server } = await startWorkers();
  const load = await underLoad(folder, server, clients);
  for (let round = 1; round <= rounds; round += 1) {
    server.signal('SIGUSR2');
    await until('all are replaced', () => count(server, 'workers_restarted') === round, 60);
    await ready(server);
    await load.waitForMore(50);
  }
  await load.stop();
  expect(load.failures).toEqual([]);
  expect(server.workers.filter(isAlive)).toEqual([]);
  expect(count(server, 'worker_exited')).toBe(0);
  expect(await server.stop()).toBe(0);
}
