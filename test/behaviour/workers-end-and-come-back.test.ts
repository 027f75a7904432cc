import type { ServerResponse } from 'node:http';
import { afterEach, expect, test } from 'vitest';
import {
  byWorker,
  type Client,
  connect,
  connectMany,
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

afterEach(async () => {
  for (const client of opened) client.close();
  opened = [];
  await folder?.remove();
});

async function start(workers: number, drain: string, preStop = '0s'): Promise<ServeProcess> {
  held = [];
  folder = await makeServeFolder(
    (settings) => ({
      ...settings,
      listen: { ...settings.listen, workers },
      shutdown: { preStop, drain },
      log: { level: 'info' },
    }),
    (request, response) => {
      if (request.url === '/files/slow') held.push(response);
      else request.resume().on('end', () => response.end('ok'));
    },
  );
  return startServe(folder);
}

async function clients(server: ServeProcess, count: number) {
  const made = await connectMany(folder, server, count, folder.alice);
  opened.push(...made);
  return made;
}

const slow = async (client: Client) => {
  const { access_token: token } = await client.grant();
  return client.ask({ path: '/files/slow', headers: { authorization: `Bearer ${token}` } });
};

test('a worker that is killed is started again, and nothing fails while one is missing or after it is back', async () => {
  const server = await start(2, '5s');
  const before = await clients(server, 20);
  const grants = await Promise.all(before.map((client) => client.grant()));
  const [victim = 0, survivor = 0] = server.workers;
  process.kill(victim, 'SIGKILL');
  await until('the supervisor knows', () => server.log.some(({ event }) => event === 'worker_ended'));

  const meanwhile = await clients(server, 10);
  expect([...byWorker(meanwhile).keys()]).toEqual([survivor]);
  expect(await readiness(server)).toBe(503);
  for (const client of before.filter(({ worker }) => worker === survivor))
    expect((await client.grant()).token_type).toBe('Bearer');

  await until('ready again', async () => (await readiness(server)) === 200);
  const after = await clients(server, 30);
  const workers = [...byWorker(after).keys()];
  expect(workers).toHaveLength(2);
  expect(workers).toContain(survivor);
  expect(workers).not.toContain(victim);
  // Grants made by the killed worker go on at the others.
  for (const [index, grant] of grants.entries()) {
    const client = after[index] ?? after[0];
    expect(await client?.accepted(grant.access_token)).toBe(true);
    expect((await client?.refresh(grant.refresh_token))?.status).toBe(200);
  }
  expect(await server.stop()).toBe(0);
});

for (const workers of [1, 2]) {
  const who = workers === 1 ? 'one process' : 'two workers';

  test(`O01 SIGTERM with ${who}: not ready, what runs is answered, idle connections close, exit code 0`, async () => {
    const server = await start(workers, '20s');
    const made = workers === 1 ? [] : await clients(server, 8);
    const [first, second] =
      workers === 1
        ? [connect(folder, server.port, folder.alice), connect(folder, server.port, folder.alice)]
        : [...byWorker(made).values()].map(([one]) => one as Client);
    if (first === undefined || second === undefined) throw new Error('two clients');
    opened.push(first, second);
    const idle = connect(folder, server.port);
    opened.push(idle);
    const { socket: connection } = await idle.ask({ path: '/health' });
    const running = Promise.all([slow(first), slow(second)]);
    await until('both requests are at the upstream', () => held.length === 2);

    // Two at once, as a terminal and the wrapper below it hand them on: still one wish.
    server.signal('SIGINT');
    server.signal('SIGTERM');
    await until(
      'everybody drains',
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
    const sent = performance.now();
    expect(await server.ended).toEqual({ code: 0, signal: null });
    // It ends because everything has ended, and not because the time is up.
    expect(performance.now() - sent).toBeLessThan(10_000);
    expect(server.workers.filter(isAlive)).toEqual([]);
    expect(server.errors()).toBe('');
  });

  test(`O03 SIGTERM with ${who} in the middle of refreshes: every one that was sent is answered`, async () => {
    const server = await start(workers, '10s', '1s');
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
        // A server that is about to leave says so, and the client goes elsewhere.
        if (reply.headers.connection === 'close') return 'sent elsewhere';
      }
    });
    await until('refreshes are under way', () => answered > 100);
    server.signal('SIGTERM');
    expect(new Set(await Promise.all(ends))).toEqual(new Set(['sent elsewhere']));
    expect(await server.ended).toEqual({ code: 0, signal: null });
  });

  test(`O02 a second signal with ${who} ends everything at once, with a code that is not 0`, async () => {
    const server = await start(workers, '30s');
    const client = connect(folder, server.port, folder.alice);
    opened.push(client);
    const running = slow(client).then(
      () => 'answered',
      () => 'cut off',
    );
    await until('the request is at the upstream', () => held.length === 1);
    server.signal('SIGTERM');
    await until('it drains', () => server.log.some(({ event }) => event === 'draining'));
    const sent = performance.now();
    // So soon after the first it would still be the first: a wrapper and a terminal hand on the same signal.
    const again = setInterval(() => server.signal('SIGTERM'), 300);
    const { code } = await server.ended;
    clearInterval(again);
    expect(code).toBeGreaterThan(0);
    expect(performance.now() - sent).toBeLessThan(3_000);
    await until('the workers are gone', () => !server.workers.some(isAlive), 3);
    expect(await running).toBe('cut off');
  });
}
