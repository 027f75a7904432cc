import { describe, expect, onTestFinished, test } from 'vitest';
import { expireTimers, holdTimers } from '../support/held-timers.ts';
import { hasLogged, http2Client, startHeldGateway } from '../support/holding-upstream.ts';
import { connect, readiness, startServe, until } from '../support/serve-process.ts';
import { chooseVariants } from '../support/variants.ts';

/** The pre-stop time ends when the test calls `expireTimers`. */
const HELD_PRE_STOP = [{ preStop: '45s', drain: '20s' }, holdTimers(45_000)] as const;

describe('graceful shutdown', () => {
  test('O01 SIGTERM: not ready at once, serves during the pre-stop time, then closes idle connections, sends GOAWAY and completes running requests', async () => {
    const { server, folder, held, client } = await startHeldGateway(1, ...HELD_PRE_STOP);
    const old = Array.from({ length: 20 }, () => client());
    const streams = http2Client(folder, server);
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
    // Load balancers may still send new clients.
    const late = client();
    const reply = await late.request({ path: '/health' });
    expect([reply.status, reply.headers.connection]).toEqual([200, 'keep-alive']);
    expect((await idle.request({ path: '/health' })).status).toBe(200);
    expect([connection.closed, streams.goneAway()]).toEqual([false, false]);

    expireTimers(server);
    await until('GOAWAY is sent', () => streams.goneAway());
    await until('idle connections are closed', () => connection.closed);
    for (const response of held) response.end('late, but here');
    for (const { status, body } of await Promise.all(running))
      expect([status, body]).toEqual([200, 'late, but here']);
    expect(await server.ended).toEqual({ code: 0, signal: null });
    expect(server.errors()).toBe('');
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
    const refreshed = clients.map((connected, index) =>
      connected.refresh(grants[index]?.refresh_token ?? ''),
    );
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
    for (const { json } of replies)
      expect((await again.refresh(String(json['refresh_token']))).status).toBe(200);
    expect(await next.stop()).toBe(0);
  });
});
