import { expect, onTestFinished } from 'vitest';
import { recordFigures } from '../../support/figures.ts';
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

/** Starts two workers; removed after the test. */
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

/** Starts a few clients over HTTP/1.1 and HTTP/2. */
export async function startWorkerLoad(
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

export const waitUntilReady = (server: ServeProcess): Promise<boolean> =>
  until('the process is ready', async () => (await readiness(server)) === 200, 30);

export const countEvents = (server: ServeProcess, event: string): number =>
  server.log.filter((line) => line.event === event).length;

/** Makes a change, and waits until both workers have logged this event. */
export async function waitForBothWorkers(server: ServeProcess, event: string, change: () => void): Promise<void> {
  const from = server.log.length;
  change();
  await until(`both workers have logged ${event}`, () => {
    const lines = server.log.slice(from).filter((line) => line.event === event);
    return new Set(lines.map((line) => line['worker'])).size === 2;
  });
}

/** Restarts the workers with SIGUSR2 under load, `rounds` times. */
export async function restartWorkers(rounds: number, clients?: Parameters<typeof startWorkerLoad>[2]): Promise<void> {
  const { folder, server } = await startWorkers();
  const load = await startWorkerLoad(folder, server, clients);
  for (let round = 1; round <= rounds; round += 1) {
    server.signal('SIGUSR2');
    await until('all workers are replaced', () => countEvents(server, 'workers_restarted') === round, 60);
    await waitUntilReady(server);
    await load.waitForMore(50);
  }
  await load.stop();
  expect(load.failures).toEqual([]);
  expect(server.workers.filter(isAlive)).toEqual([]);
  expect(countEvents(server, 'worker_exited')).toBe(0);
  expect(await server.stop()).toBe(0);
  recordFigures('worker-restarts', {
    'restarts of all workers': rounds,
    requests: load.completed(),
    'failed requests': load.failures.length,
  });
}
