import { describe, expect, onTestFinished, test } from 'vitest';
import { holdTimers } from '../support/held-timers.ts';
import { hasLogged, onSignal, startHeldGateway } from '../support/holding-upstream.ts';
import { readiness, until } from '../support/serve-process.ts';
import { startSteadyLoad } from '../support/steady-load.ts';

/** Timers after a fatal error: the drain, and the time after which the process exits in any case. */
const HELD_EXIT_TIMERS = holdTimers(2_000, 3_000);

describe('O10 an unexpected error', () => {
  for (const [kind, code, event] of [
    ['an exception', "setImmediate(()=>{throw new Error('surprise')})", 'uncaught_exception'],
    ['a rejection', "Promise.reject(new Error('surprise'))", 'unhandled_rejection'],
  ] as const)
    test(`O10 ${kind} is logged and counted, running requests may complete, and the exit code is 1`, async () => {
      const { server, held, client } = await startHeldGateway(
        1,
        { preStop: '30s', drain: '30s' },
        { nodeOptions: [...onSignal(code).nodeOptions, ...HELD_EXIT_TIMERS.nodeOptions] },
      );
      const running = client().request({ path: '/held' });
      await until('the request has reached the upstream', () => held.length === 1);
      server.signal('SIGWINCH');
      await until('the error is logged', () => hasLogged(server, event));
      await until('the process is draining', () => hasLogged(server, 'draining'));
      held[0]?.end('completed');
      expect((await running).text).toBe('completed');
      expect((await server.ended).code).toBe(1);
      expect(server.log.find((line) => line.event === event)).toMatchObject({ level: 'error', count: 1 });
    });

  test('O10 a request that does not complete delays the exit only briefly', async () => {
    const { server, held, client } = await startHeldGateway(
      1,
      { preStop: '30s', drain: '30s' },
      onSignal("setImmediate(()=>{throw new Error('surprise')})"),
    );
    const running = client()
      .request({ path: '/held' })
      .catch(() => 'aborted');
    await until('the request has reached the upstream', () => held.length === 1);
    server.signal('SIGWINCH');
    expect((await server.ended).code).toBe(1);
    expect(await running).toBe('aborted');
  });

  test('O10 after an error in a worker, the others keep serving, it is restarted, and no request fails', async () => {
    const { server, folder } = await startHeldGateway(
      2,
      { preStop: '0s', drain: '10s' },
      onSignal("setImmediate(()=>{throw new Error('surprise')})"),
    );
    const load = startSteadyLoad({ port: server.port, ca: folder.ca.pem, path: '/health' });
    onTestFinished(() => load.stop());
    await load.waitForMore(100);
    const [victim = 0] = server.workers;
    process.kill(victim, 'SIGWINCH');
    await until('the worker has exited', () => hasLogged(server, 'worker_exited'));
    await until('the worker is replaced', async () => (await readiness(server)) === 200, 30);
    await load.waitForMore(100);
    await load.stop();
    expect(load.failures).toEqual([]);
    expect(server.log.find((line) => line.event === 'worker_exited')).toMatchObject({ pid: victim, code: 1 });
    expect(await server.stop()).toBe(0);
  });
});
