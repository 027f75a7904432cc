import { existsSync } from 'node:fs';
import { describe, expect, onTestFinished, test } from 'vitest';
import { readiness, type StartOptions, until } from '../support/serve-process.ts';
import { steadyLoad } from '../support/steady-load.ts';
import { said, startHolding } from './holding-upstream.ts';

/** Runs this in the process on SIGWINCH: for errors and stalls that no request can cause. */
const onSignal = (does: string): StartOptions => ({
  nodeOptions: ['--import', `data:text/javascript,process.on('SIGWINCH',()=>{${encodeURIComponent(does)}})`],
});

/**
 * Longer than the event loop may stall (1 s), and until the test has sent what is to meet it. One long wait: the time that a
 * thread waits for a CPU is no stall.
 */
const STALL = `
  const { existsSync, writeFileSync } = process.getBuiltinModule('node:fs');
  const pause = (ms) => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
  writeFileSync('stalled-' + process.pid, '');
  pause(1500);
  while (!existsSync('go-on')) pause(20);
`;

describe('O10 an unexpected error', () => {
  for (const [what, does, event] of [
    ['an exception', "setImmediate(()=>{throw new Error('surprise')})", 'uncaught_exception'],
    ['a rejection', "Promise.reject(new Error('surprise'))", 'unhandled_rejection'],
  ] as const)
    test(`O10 ${what}: it is logged and counted, running requests may end, and the exit code is 1`, async () => {
      const { server, held, client } = await startHolding(
        1,
        { preStop: '30s', drain: '30s' },
        onSignal(does),
      );
      const running = client().ask({ path: '/held' });
      await until('it is at the upstream', () => held.length === 1);
      server.signal('SIGWINCH');
      await until('it is logged', () => said(server, event));
      await until('it drains', () => said(server, 'draining'));
      held[0]?.end('still answered');
      expect((await running).text).toBe('still answered');
      expect((await server.ended).code).toBe(1);
      expect(server.log.find((line) => line.event === event)).toMatchObject({ level: 'error', count: 1 });
    });

  test('O10 a request that does not end does not delay the exit for long', async () => {
    const { server, held, client } = await startHolding(
      1,
      { preStop: '30s', drain: '30s' },
      onSignal("setImmediate(()=>{throw new Error('surprise')})"),
    );
    const running = client()
      .ask({ path: '/held' })
      .catch(() => 'cut off');
    await until('it is at the upstream', () => held.length === 1);
    server.signal('SIGWINCH');
    expect((await server.ended).code).toBe(1);
    expect(await running).toBe('cut off');
  });

  test('O10 in a worker: the others go on serving, it is started again, and no request fails', async () => {
    const { server, folder } = await startHolding(
      2,
      { preStop: '0s', drain: '10s' },
      onSignal("setImmediate(()=>{throw new Error('surprise')})"),
    );
    const load = steadyLoad({ port: server.port, ca: folder.ca.pem, path: '/health' });
    onTestFinished(() => load.stop());
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

describe('X14 a process whose event loop stalls', () => {
  for (const workers of [1, 2])
    test(`X14 reports it, sheds new token calls for a moment, and recovers (${workers} workers)`, async () => {
      const { server, folder, client } = await startHolding(
        workers,
        { preStop: '0s', drain: '5s' },
        onSignal(STALL),
      );
      const [one, two, three] = [client(), client(), client()];
      const grant = await one.grant();
      for (const other of [two, three]) expect((await other.ask({ path: '/health' })).status).toBe(200);
      const stalled = workers === 1 ? [server.pid] : server.workers;
      for (const pid of stalled) process.kill(pid, 'SIGWINCH');
      await until('all stall', () => stalled.every((pid) => existsSync(folder.file(`stalled-${pid}`))));

      // Sent during the stall on open connections: they are read at its end, while it counts.
      const shedding = one.post('/Authorize/Certificate', {
        client_id: 'report-runner',
        scope: 'files:read',
      });
      const forwarding = two.ask({ path: '/health' });
      const revoking = three.revoke(grant.access_token);
      const notReady = until('it is not ready', async () => (await readiness(server)) === 503);
      // The next turn of the event loop writes them.
      await new Promise(setImmediate);
      folder.write('go-on', '');
      const shed = await shedding;
      expect([shed.status, shed.headers['retry-after']]).toEqual([400, '2']);
      expect(['invalid_grant', 'invalid_client']).not.toContain(shed.json['Error']);
      expect([(await forwarding).status, (await revoking).status]).toEqual([200, 200]);
      await notReady;
      await until('it is logged', () => said(server, 'overloaded'));
      await until('ready again', async () => (await readiness(server)) === 200);
      expect((await one.grant()).token_type).toBe('Bearer');
      expect(await server.stop()).toBe(0);
    });
});
