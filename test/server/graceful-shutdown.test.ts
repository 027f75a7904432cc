import { once } from 'node:events';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import { describe, expect, onTestFinished, test } from 'vitest';
import { runGatehouse } from '../support/command-line.ts';
import { expireTimers, holdTimers } from '../support/held-timers.ts';
import { hasLogged, http2Client, startHeldGateway } from '../support/holding-upstream.ts';
import type { ClientRequestInit } from '../support/https-client.ts';
import {
  connect,
  readiness,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';
import { chooseVariants } from '../support/variants.ts';

/** The pre-stop time ends when the test calls `expireTimers`. */
const HELD_PRE_STOP = [{ preStop: '45s', drain: '20s' }, holdTimers(45_000)] as const;

/** A connection on which nothing is sent. */
async function connectClient({ ca }: ServeFolder, { port }: ServeProcess): Promise<TLSSocket> {
  const socket = connectTls({ host: '127.0.0.1', port, servername: 'localhost', ca: ca.pem });
  onTestFinished(() => void socket.destroy());
  socket.resume();
  await once(socket, 'secureConnect');
  return socket;
}

describe('graceful shutdown', () => {
  test('O01 SIGTERM: not ready at once, serves the last request of each connection during the pre-stop time, then closes idle connections and completes running requests', async () => {
    const { server, folder, held, client } = await startHeldGateway(1, ...HELD_PRE_STOP);
    const old = Array.from({ length: 20 }, () => client());
    const streams = http2Client(folder, server);
    const idleStreams = http2Client(folder, server);
    expect((await idleStreams.get('/health')).status).toBe(200);
    const running = [
      ...old.map((connected) =>
        connected.request({ path: '/held' }).then(({ status, text }) => ({ status, body: text })),
      ),
      ...old.map(() => streams.get('/held')),
    ];
    const idle = client();
    const { socket: connection } = await idle.request({ path: '/health' });
    await until('all requests have reached the upstream', () => held.length === 40);

    server.signal('SIGTERM');
    await until('the process is draining', () => hasLogged(server, 'draining'));
    expect(await readiness(server)).toBe(503);
    expect(connection.closed).toBe(false);
    // Load balancers may still send new clients.
    for (const connected of [idle, client(), client()]) {
      const reply = await connected.request({ path: '/health' });
      expect([reply.status, reply.headers.connection]).toEqual([200, 'close']);
    }
    const lateStreams = http2Client(folder, server);
    expect((await lateStreams.get('/health')).status).toBe(200);
    await until('HTTP/2 clients without requests are asked to use another connection', () =>
      [idleStreams, lateStreams].every((client) => client.goneAway()),
    );
    // Some clients would give up their pending requests.
    expect((await streams.get('/health')).status).toBe(200);
    expect(streams.goneAway()).toBe(false);
    const unused = await connectClient(folder, server);

    expireTimers(server);
    await until('idle connections are closed', () => unused.closed);
    for (const response of held) response.end('late, but here');
    for (const { status, body } of await Promise.all(running)) expect([status, body]).toEqual([200, 'late, but here']);
    expect(await server.ended).toEqual({ code: 0, signal: null });
    expect(server.errors()).toBe('');
  });

  test('O01 every kind of response closes its connection during the pre-stop time', async () => {
    const { server, held, client } = await startHeldGateway(1, ...HELD_PRE_STOP);
    const { access_token: token } = await client().grant();
    const early = client().request({ path: '/held' });
    await until('the request has reached the upstream', () => held.length === 1);
    server.signal('SIGTERM');
    await until('the process is draining', () => hasLogged(server, 'draining'));
    held[0]?.end('late');
    const authorization = { authorization: `Bearer ${token}` };
    const requests: readonly ClientRequestInit[] = [
      { path: '/health' },
      { path: '/files/1', headers: authorization },
      { path: '/reports/1', method: 'POST', headers: { 'transfer-encoding': 'chunked' }, body: 'a' },
      { path: '/files/1' },
      { path: '/unknown' },
      { path: '/health?%' },
      { path: '/authsvc/Authorize/Verify', headers: authorization },
      { path: '/authsvc/oauth2/unknown', method: 'POST' },
      { path: '/authsvc/openapi.json' },
      { path: '/authsvc/device' },
      { path: '/authsvc/forward-auth', headers: authorization },
    ];
    const replies = await Promise.all([early, ...requests.map((request) => client().request(request))]);
    expect(replies.map(({ headers }) => headers.connection)).toEqual(replies.map(() => 'close'));
    expect(replies.filter(({ status }) => status === 200).length).toBeGreaterThan(3);
    expireTimers(server);
    expect((await server.ended).code).toBe(0);
  });

  for (const workers of [1, 2])
    test(`O01 \`gatehouse drain\` announces the shutdown, and SIGTERM ends the process (${workers} workers)`, async () => {
      const shutdown = { preStop: '45s', drain: '20s' };
      const { server, client } = await startHeldGateway(workers, shutdown, holdTimers(45_000));
      const open = client();
      expect((await open.request({ path: '/health' })).headers.connection).toBe('keep-alive');
      const result = await runGatehouse(['drain', '0.1', '--pid', String(server.pid)]);
      expect(result).toMatchObject({ code: 0, stderr: '' });
      await until(
        'each process has announced it',
        () => server.log.filter(({ event }) => event === 'shutdown_announced').length === workers,
      );
      expect(await readiness(server)).toBe(503);
      for (const connected of [open, client()]) {
        const { status, headers } = await connected.request({ path: '/health' });
        expect([status, headers.connection]).toEqual([200, 'close']);
      }
      // Hooks may run more than once.
      expect((await runGatehouse(['drain', '0', '--pid', String(server.pid)])).code).toBe(0);
      expireTimers(server);
      // The pre-stop time has passed.
      expect(await server.stop()).toBe(0);
    });

  test('O01 a response that begins after the pre-stop time has Connection: close', async () => {
    const { server, folder, held, client } = await startHeldGateway(1, { preStop: '0s', drain: '20s' });
    const h1 = client();
    const streams = http2Client(folder, server);
    expect((await streams.get('/health')).status).toBe(200);
    const running = h1.request({ path: '/held' });
    await until('the request has reached the upstream', () => held.length === 1);
    server.signal('SIGTERM');
    await until('GOAWAY is sent', () => streams.goneAway());
    held[0]?.end('last');
    const { status, headers } = await running;
    expect([status, headers.connection]).toEqual([200, 'close']);
    expect((await server.ended).code).toBe(0);
  });

  for (const workers of chooseVariants([1, 2], [2]))
    test(`O02 requests that exceed the drain time are aborted, and the exit code is not 0 (${workers} workers)`, async () => {
      const { server, held, client } = await startHeldGateway(workers, { preStop: '0s', drain: '1s' });
      const running = client()
        .request({ path: '/held' })
        .then(
          () => 'completed',
          () => 'aborted',
        );
      await until('the request has reached the upstream', () => held.length === 1);
      server.signal('SIGTERM');
      const { code } = await server.ended;
      expect(code).toBeGreaterThan(0);
      expect(await running).toBe('aborted');
    });

  test('O03 refreshes sent before the signal complete, and the new tokens work after the restart', async () => {
    // The requests are read within the pre-stop time.
    const { server, folder, client } = await startHeldGateway(1, ...HELD_PRE_STOP);
    const clients = Array.from({ length: 10 }, () => client());
    const grants = await Promise.all(clients.map((connected) => connected.grant()));
    const refreshed = clients.map((connected, index) => connected.refresh(grants[index]?.refresh_token ?? ''));
    // The next event-loop iteration writes the requests.
    await new Promise(setImmediate);
    server.signal('SIGTERM');
    const replies = await Promise.all(refreshed);
    await until('the process is draining', () => hasLogged(server, 'draining'));
    expireTimers(server);
    expect(replies.map(({ status }) => status)).toEqual(clients.map(() => 200));
    expect((await server.ended).code).toBe(0);

    const next = await startServe(folder, { set: ['shutdown.preStop=0s'] });
    const again = connect(folder, next.port);
    onTestFinished(() => again.close());
    for (const { json } of replies) expect((await again.refresh(String(json['refresh_token']))).status).toBe(200);
    expect(await next.stop()).toBe(0);
  });
});
