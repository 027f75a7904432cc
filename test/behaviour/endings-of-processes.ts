import type { ServerResponse } from 'node:http';
import { afterEach, expect, test } from 'vitest';
import { clientOfEachWorker } from '../support/client-of-each-worker.ts';
import {
  type Client,
  connect,
  isAlive,
  makeServeFolder,
  readiness,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';

let folder: ServeFolder;
/** Requests the upstream has got and not answered yet. */
let held: ServerResponse[] = [];
let opened: Client[] = [];

/** So long that a test that waits for the end of a drain fails. */
const NEVER = '10m';

async function start(workers: number, preStop = '0s'): Promise<ServeProcess> {
  held = [];
  folder = await makeServeFolder(
    (settings) => ({
      ...settings,
      listen: { ...settings.listen, workers },
      shutdown: { preStop, drain: NEVER },
      log: { level: 'info' },
    }),
    (request, response) => {
      if (request.url === '/files/slow') held.push(response);
      else request.resume().on('end', () => response.end('ok'));
    },
  );
  return startServe(folder);
}

const slow = async (client: Client) => {
  const { access_token: token } = await client.grant();
  return client.ask({ path: '/files/slow', headers: { authorization: `Bearer ${token}` } });
};

/** What ends a gatehouse with so many workers, and how. */
export function endings(workers: 1 | 2): void {
  const who = workers === 1 ? 'one process' : 'two workers';
  afterEach(async () => {
    for (const client of opened) client.close();
    opened = [];
    await folder?.remove();
  });

  test(`O01 SIGTERM with ${who}: not ready, running requests complete, idle connections close, exit code 0`, async () => {
    const server = await start(workers);
    const [first, second] =
      workers === 1
        ? [connect(folder, server.port, folder.alice), connect(folder, server.port, folder.alice)]
        : await clientOfEachWorker(folder, server, folder.alice);
    if (first === undefined || second === undefined) throw new Error('two clients');
    opened.push(first, second);
    const idle = connect(folder, server.port);
    opened.push(idle);
    const { socket: connection } = await idle.ask({ path: '/health' });
    const running = Promise.all([slow(first), slow(second)]);
    await until('both requests are at the upstream', () => held.length === 2);

    // Two at once, as from a terminal and from the wrapper below it: they count as one.
    server.signal('SIGINT');
    server.signal('SIGTERM');
    await until(
      'each process drains',
      () => server.log.filter(({ event }) => event === 'draining').length === workers,
    );
    expect(await readiness(server)).toBe(503);
    await until('the idle connection is closed', () => connection.closed);
    expect(server.log.filter(({ event }) => event === 'worker_ended')).toEqual([]);
    for (const response of held) response.end('late, but here');
    for (const reply of await running) {
      expect(reply.status).toBe(200);
      expect(reply.text).toBe('late, but here');
    }
    expect(await server.ended).toEqual({ code: 0, signal: null });
    expect(server.workers.filter(isAlive)).toEqual([]);
    expect(server.errors()).toBe('');
  });

  test(`O03 SIGTERM with ${who} during refreshes: each one that was sent gets its response`, async () => {
    const server = await start(workers, '1s');
    const refreshers = Array.from({ length: 24 }, () => connect(folder, server.port, folder.alice));
    opened.push(...refreshers);
    const grants = await Promise.all(refreshers.map((client) => client.grant()));
    let answered = 0;
    const ends = refreshers.map(async (client, index) => {
      let token = grants[index]?.refresh_token ?? '';
      for (;;) {
        const reply = await client.refresh(token);
        if (reply.status !== 200) return reply.text;
        answered += 1;
        token = String(reply.json['refresh_token']);
        // A server that is about to stop announces it, and the client connects elsewhere.
        if (reply.headers.connection === 'close') return 'sent elsewhere';
      }
    });
    await until('refreshes are under way', () => answered > 100);
    server.signal('SIGTERM');
    expect(new Set(await Promise.all(ends))).toEqual(new Set(['sent elsewhere']));
    expect(await server.ended).toEqual({ code: 0, signal: null });
  });

  test(`O02 a second signal with ${who} does not wait for the drain, and the exit code is not 0`, async () => {
    const server = await start(workers);
    const client = connect(folder, server.port, folder.alice);
    opened.push(client);
    const running = slow(client).then(
      () => 'answered',
      () => 'cut off',
    );
    await until('the request is at the upstream', () => held.length === 1);
    server.signal('SIGTERM');
    await until('it drains', () => server.log.some(({ event }) => event === 'draining'));
    // Shortly after the first it still counts as the first: a wrapper and a terminal forward the same signal.
    const again = setInterval(() => server.signal('SIGTERM'), 300);
    const { code } = await server.ended;
    clearInterval(again);
    expect(code).toBeGreaterThan(0);
    await until('the workers are gone', () => !server.workers.some(isAlive));
    expect(await running).toBe('cut off');
  });
}
