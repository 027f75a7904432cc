import type { ServerResponse } from 'node:http';
import { connect as connectHttp2 } from 'node:http2';
import { afterEach, describe, expect, test } from 'vitest';
import {
  type Client,
  connect,
  makeServeFolder,
  readiness,
  type ServeFolder,
  type ServeProcess,
  type StartOptions,
  startServe,
  until,
} from '../support/serve-process.ts';
import { type SteadyLoad, steadyLoad } from '../support/steady-load.ts';

let folder: ServeFolder;
let held: ServerResponse[] = [];
const opened: { close(): void }[] = [];
let load: SteadyLoad | undefined;

afterEach(async () => {
  await load?.stop();
  load = undefined;
  for (const one of opened.splice(0)) one.close();
  await folder?.remove();
});

async function start(
  workers: number,
  shutdown: { readonly preStop: string; readonly drain: string },
  options: StartOptions = {},
): Promise<ServeProcess> {
  held = [];
  folder = await makeServeFolder(
    (settings) => ({
      ...settings,
      listen: { ...settings.listen, workers },
      shutdown,
      log: { level: 'info', access: { enabled: false } },
      routes: [...(settings.routes ?? []), { path: '/held', public: true }],
    }),
    (request, response) => {
      if (request.url === '/held') held.push(response);
      else request.resume().on('end', () => response.end('ok'));
    },
  );
  return startServe(folder, options);
}

function client(server: ServeProcess, as = folder.alice): Client {
  const made = connect(folder, server.port, as);
  opened.push(made);
  return made;
}

interface Streamed {
  readonly status: number;
  readonly body: string;
}

function http2(server: ServeProcess) {
  const session = connectHttp2(`https://localhost:${server.port}`, { ca: folder.ca.pem });
  let goneAway = false;
  session.on('error', () => {});
  session.on('goaway', () => {
    goneAway = true;
  });
  opened.push({ close: () => session.destroy() });
  return {
    goneAway: () => goneAway,
    ask: (path: string) =>
      new Promise<Streamed>((resolve, reject) => {
        const stream = session.request({ ':path': path });
        let status = 0;
        let body = '';
        stream.setEncoding('utf8');
        stream.on('response', (fields) => {
          status = Number(fields[':status']);
        });
        stream.on('data', (part: string) => {
          body += part;
        });
        stream.on('error', reject).on('end', () => resolve({ status, body }));
        stream.end();
      }),
  };
}

const said = (server: ServeProcess, event: string): boolean =>
  server.log.some((line) => line.event === event);

describe('an orderly end', () => {
  test('O01 not ready at once, served on for the pre-stop time, then close and GOAWAY, and what runs is answered', async () => {
    const server = await start(1, { preStop: '2s', drain: '20s' });
    const old = Array.from({ length: 20 }, () => client(server));
    const streams = http2(server);
    const running = [
      ...old.map((one) => one.ask({ path: '/held' }).then(({ status, text }) => ({ status, body: text }))),
      ...old.map(() => streams.ask('/held')),
    ];
    const idle = client(server);
    const { socket: connection } = await idle.ask({ path: '/health' });
    await until('all are at the upstream', () => held.length === 40);

    server.signal('SIGTERM');
    await until('it is not ready', async () => (await readiness(server)) === 503);
    // Whoever has not heard of it yet is served as before.
    const late = client(server);
    const reply = await late.ask({ path: '/health' });
    expect([reply.status, reply.headers.connection]).toEqual([200, 'keep-alive']);
    expect((await idle.ask({ path: '/health' })).status).toBe(200);
    expect([connection.closed, streams.goneAway()]).toEqual([false, false]);

    await until('HTTP/2 is told to go elsewhere', () => streams.goneAway());
    await until('idle connections are closed', () => connection.closed);
    for (const response of held) response.end('late, but here');
    for (const { status, body } of await Promise.all(running))
      expect([status, body]).toEqual([200, 'late, but here']);
    expect(await server.ended).toEqual({ code: 0, signal: null });
    expect(server.errors()).toBe('');
  });

  test('O01 an answer that begins after the pre-stop time says that it is the last on its connection', async () => {
    const server = await start(1, { preStop: '0s', drain: '20s' });
    const one = client(server);
    const running = one.ask({ path: '/held' });
    await until('it is at the upstream', () => held.length === 1);
    server.signal('SIGTERM');
    await until('it drains', () => said(server, 'draining'));
    held[0]?.end('last');
    const { status, headers } = await running;
    expect([status, headers.connection]).toEqual([200, 'close']);
    expect((await server.ended).code).toBe(0);
  });

  for (const workers of [1, 2])
    test(`O02 what does not end in time is cut off, and the exit code says so (${workers} workers)`, async () => {
      const server = await start(workers, { preStop: '0s', drain: '1s' });
      const running = client(server)
        .ask({ path: '/held' })
        .then(
          () => 'answered',
          () => 'cut off',
        );
      await until('it is at the upstream', () => held.length === 1);
      server.signal('SIGTERM');
      const { code } = await server.ended;
      expect(code).toBeGreaterThan(0);
      expect(await running).toBe('cut off');
    });

  test('O03 refreshes that were sent before the signal are answered, and the new tokens work after the restart', async () => {
    const server = await start(1, { preStop: '0s', drain: '20s' });
    const clients = Array.from({ length: 10 }, () => client(server));
    const grants = await Promise.all(clients.map((one) => one.grant()));
    const refreshed = clients.map((one, index) => one.refresh(grants[index]?.refresh_token ?? ''));
    server.signal('SIGTERM');
    const replies = await Promise.all(refreshed);
    expect(replies.map(({ status }) => status)).toEqual(clients.map(() => 200));
    expect((await server.ended).code).toBe(0);

    const next = await startServe(folder);
    const again = client(next);
    for (const { json } of replies)
      expect((await again.refresh(String(json['refresh_token']))).status).toBe(200);
    expect(await next.stop()).toBe(0);
  });
});

/** Something in the process goes wrong when it gets this signal: for errors that no request can cause. */
const onSignal = (does: string): StartOptions => ({
  nodeOptions: ['--import', `data:text/javascript,process.on('SIGWINCH',()=>{${encodeURIComponent(does)}})`],
});

describe('O10 an error that nobody expected', () => {
  for (const [what, does, event] of [
    ['an exception', "setImmediate(()=>{throw new Error('surprise')})", 'uncaught_exception'],
    ['a rejection', "Promise.reject(new Error('surprise'))", 'unhandled_rejection'],
  ] as const)
    test(`O10 ${what}: it is logged and counted, what runs may end, and the exit code is 1`, async () => {
      const server = await start(1, { preStop: '30s', drain: '30s' }, onSignal(does));
      const running = client(server).ask({ path: '/held' });
      await until('it is at the upstream', () => held.length === 1);
      server.signal('SIGWINCH');
      await until('it is said', () => said(server, event));
      await until('it drains', () => said(server, 'draining'));
      held[0]?.end('still answered');
      expect((await running).text).toBe('still answered');
      expect((await server.ended).code).toBe(1);
      expect(server.log.find((line) => line.event === event)).toMatchObject({ level: 'error', count: 1 });
    });

  test('O10 what does not end by itself holds nobody up', async () => {
    const server = await start(
      1,
      { preStop: '30s', drain: '30s' },
      onSignal("setImmediate(()=>{throw new Error('surprise')})"),
    );
    const running = client(server)
      .ask({ path: '/held' })
      .catch(() => 'cut off');
    await until('it is at the upstream', () => held.length === 1);
    server.signal('SIGWINCH');
    expect((await server.ended).code).toBe(1);
    expect(await running).toBe('cut off');
  });

  test('O10 in a worker: the others serve on, it is started again, and no request fails', async () => {
    const server = await start(
      2,
      { preStop: '0s', drain: '10s' },
      onSignal("setImmediate(()=>{throw new Error('surprise')})"),
    );
    load = steadyLoad({ port: server.port, ca: folder.ca.pem, path: '/health' });
    await load.more(100);
    const [victim = 0] = server.workers;
    process.kill(victim, 'SIGWINCH');
    await until('it has ended', () => said(server, 'worker_ended'));
    await until('another serves', async () => (await readiness(server)) === 200, 30);
    await load.more(100);
    await load.stop();
    expect(load.failures).toEqual([]);
    expect(server.log.find((line) => line.event === 'worker_ended')).toMatchObject({ pid: victim, code: 1 });
    expect(await server.stop()).toBe(0);
  });
});

describe('X14 a process that does not keep up', () => {
  for (const workers of [1, 2])
    test(`X14 says so, sends new work of the token service away for a moment, and recovers (${workers} workers)`, async () => {
      // CPU time: time in which the machine gives it no CPU does not count.
      const block = 'const from=process.threadCpuUsage();while(process.threadCpuUsage(from).user<1.5e6);';
      const server = await start(workers, { preStop: '0s', drain: '5s' }, onSignal(block));
      const one = client(server);
      const grant = await one.grant();
      const every = workers === 1 ? [server.pid] : server.workers;
      for (const pid of every) process.kill(pid, 'SIGWINCH');
      await until('it is noticed', () => said(server, 'overloaded'));
      const shed = await until('a grant is put off', async () => {
        const reply = await one.post('/Authorize/Certificate', {
          client_id: 'report-runner',
          scope: 'files:read',
        });
        return reply.status !== 200 && reply;
      });
      expect([shed.status, shed.headers['retry-after']]).toEqual([expect.any(Number), '2']);
      expect(['invalid_grant', 'invalid_client']).not.toContain(shed.json['Error']);
      expect(await readiness(server)).toBe(503);
      // What is forwarded, and what ends a grant, is served all the same.
      expect((await one.ask({ path: '/health' })).status).toBe(200);
      expect((await one.revoke(grant.access_token)).status).toBe(200);
      await until('ready again', async () => (await readiness(server)) === 200);
      expect((await one.grant()).token_type).toBe('Bearer');
      expect(await server.stop()).toBe(0);
    });
});

test('O13 probes and metrics are not on the public port: the rules apply to their paths as to any', async () => {
  const server = await start(1, { preStop: '0s', drain: '5s' });
  const one = client(server);
  const { access_token: token } = await one.grant();
  for (const path of ['/metrics', '/readyz', '/ready', '/livez', '/healthz', '/ping', '/admin/grants']) {
    const stranger = await one.ask({ path });
    const known = await one.ask({ path, headers: { authorization: `Bearer ${token}` } });
    expect([path, stranger.status, known.status]).toEqual([path, 401, 404]);
  }
  for (const path of ['/health', '/files/1', '/authsvc/Authorize/Verify'])
    expect([path, (await fetch(`http://127.0.0.1:${server.adminPort}${path}`)).status]).toEqual([path, 404]);
  expect(await server.stop()).toBe(0);
});
