import { describe, expect, onTestFinished, test } from 'vitest';
import { holdTimers } from '../support/held-timers.ts';
import { readiness, until } from '../support/serve-process.ts';
import { steadyLoad } from '../support/steady-load.ts';
import { onSignal, said, startHolding } from './holding-upstream.ts';

/** The drain after such an error, and the time after which the process exits in any case: the test ends its request first. */
const LAST_DRAIN = holdTimers(2_000, 3_000);

describe('O10 an unexpected error', () => {
  for (const [what, does, event] of [
    ['an exception', "setImmediate(()=>{throw new Error('surprise')})", 'uncaught_exception'],
    ['a rejection', "Promise.reject(new Error('surprise'))", 'unhandled_rejection'],
  ] as const)
    test(`O10 ${what}: it is logged and counted, running requests may end, and the exit code is 1`, async () => {
      const { server, held, client } = await startHolding(
        1,
        { preStop: '30s', drain: '30s' },
        { nodeOptions: [...onSignal(does).nodeOptions, ...LAST_DRAIN.nodeOptions] },
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
