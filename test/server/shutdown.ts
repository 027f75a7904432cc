import type { ServerResponse } from 'node:http';
import { expect, onTestFinished, test } from 'vitest';
import { createKeyringFile, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { connectToEachWorker } from '../support/connect-to-each-worker.ts';
import { expireTimers, holdTimers } from '../support/held-timers.ts';
import {
  type Client,
  connect,
  createServeFolder,
  isAlive,
  readiness,
  type ServeProcess,
  type StartOptions,
  startServe,
  until,
} from '../support/serve-process.ts';

/** Longer than the test timeout: a test that waits for the drain to end fails. */
const NEVER = '10m';

async function startLoaded(workers: number, preStop = '0s', options?: StartOptions) {
  /** Pending responses to `/files/slow`, which the test sends. */
  const held: ServerResponse[] = [];
  const folder = await createServeFolder(
    (settings) => ({
      ...settings,
      listen: { ...settings.listen, workers },
      shutdown: { preStop, drain: NEVER },
      keys: { file: 'keys.json' },
      log: { level: 'info' },
    }),
    (request, response) => {
      if (request.url === '/files/slow') held.push(response);
      else request.resume().on('end', () => response.end('ok'));
    },
  );
  onTestFinished(() => folder.remove());
  // A key file that gatehouse creates at start causes a reload.
  writeKeyringFile(folder.file('keys.json'), createKeyringFile('EdDSA'), { replace: false });
  const server = await startServe(folder, options);
  const client = (): Client => {
    const connected = connect(folder, server.port, folder.alice);
    onTestFinished(() => connected.close());
    return connected;
  };
  return { server, folder, held, client };
}

const waitUntilDraining = (server: ServeProcess, processes: number): Promise<boolean> =>
  until('every process is draining', () => server.log.filter(({ event }) => event === 'draining').length === processes);

const requestSlow = async (client: Client) => {
  const { access_token: token } = await client.grant();
  return client.request({ path: '/files/slow', headers: { authorization: `Bearer ${token}` } });
};

const describeProcesses = (workers: 1 | 2): string => (workers === 1 ? 'one process' : 'two workers');

/** Tests of the shutdown with this number of workers. */
export function testShutdown(workers: 1 | 2): void {
  const processModel = describeProcesses(workers);

  test(`O01 a reload applies a shorter shutdown time, ${processModel}`, async () => {
    const { server, folder } = await startLoaded(workers, NEVER);
    folder.configure((settings) => ({ ...settings, shutdown: { preStop: '0s', drain: NEVER } }));
    const reloaded = (): unknown[] =>
      server.log.filter(({ event }) => event === 'reloaded').map((line) => line['worker']);
    await until('each process has reloaded', () => new Set(reloaded()).size === workers);
    expect(await server.stop()).toBe(0);
  });

  test(`O01 SIGTERM with ${processModel}: not ready, running requests complete, idle connections close, exit code 0`, async () => {
    const { server, folder, held, client } = await startLoaded(workers);
    const clients = workers === 1 ? [client(), client()] : await connectToEachWorker(folder, server, folder.alice);
    onTestFinished(() => clients.forEach((connected) => connected.close()));
    const idle = client();
    const { socket: connection } = await idle.request({ path: '/health' });
    const running = Promise.all(clients.map(requestSlow));
    await until('both requests have reached the upstream', () => held.length === 2);

    // Two at once, as from a terminal and from a wrapper process, count as one.
    server.signal('SIGINT');
    server.signal('SIGTERM');
    await waitUntilDraining(server, workers);
    expect(await readiness(server)).toBe(503);
    await until('the idle connection is closed', () => connection.closed);
    expect(server.log.filter(({ event }) => event === 'worker_exited')).toEqual([]);
    for (const response of held) response.end('late, but here');
    for (const reply of await running) {
      expect(reply.status).toBe(200);
      expect(reply.text).toBe('late, but here');
    }
    expect(await server.ended).toEqual({ code: 0, signal: null });
    expect(server.workers.filter(isAlive)).toEqual([]);
    expect(server.errors()).toBe('');
  });

  test(`O03 SIGTERM with ${processModel} during refreshes: every sent refresh gets its response`, async () => {
    const { server, client } = await startLoaded(workers, '45s', holdTimers(45_000));
    const refreshers = Array.from({ length: 24 }, client);
    const grants = await Promise.all(refreshers.map((refresher) => refresher.grant()));
    let responded = 0;
    let isEnding = false;
    const ends = refreshers.map(async (refresher, index) => {
      let token = grants[index]?.refresh_token ?? '';
      for (;;) {
        const reply = await refresher.refresh(token);
        if (reply.status !== 200) return reply.text;
        responded += 1;
        token = String(reply.json['refresh_token']);
        // The server announces its shutdown, and a real client would connect to another replica.
        if (reply.headers.connection === 'close' && isEnding) return 'closed by server';
      }
    });
    await until('refreshes are running', () => responded > 100);
    server.signal('SIGTERM');
    await waitUntilDraining(server, workers);
    const before = responded;
    // On new connections.
    await until('refreshes continue', () => responded > before + 50);
    isEnding = true;
    const closed = await Promise.all(ends);
    expireTimers(server);
    expect(new Set(closed)).toEqual(new Set(['closed by server']));
    expect(await server.ended).toEqual({ code: 0, signal: null });
  });

  testSecondSignal(workers);
}

export function testSecondSignal(workers: 1 | 2): void {
  const processModel = describeProcesses(workers);
  test(`O02 a second signal with ${processModel} does not wait for the drain, and the exit code is not 0`, async () => {
    const { server, held, client } = await startLoaded(workers);
    const running = requestSlow(client()).then(
      () => 'completed',
      () => 'aborted',
    );
    await until('the request has reached the upstream', () => held.length === 1);
    server.signal('SIGTERM');
    await waitUntilDraining(server, workers);
    // A second signal shortly after the first is ignored, because a wrapper and a terminal may forward the same signal.
    const again = setInterval(() => server.signal('SIGTERM'), 300);
    const { code } = await server.ended;
    clearInterval(again);
    expect(code).toBeGreaterThan(0);
    await until('the workers have exited', () => !server.workers.some(isAlive));
    expect(await running).toBe('aborted');
  });
}
