import { expect, onTestFinished, test } from 'vitest';
import { connectToEachWorker } from '../../support/connect-to-each-worker.ts';
import { createServeFolder, startServe } from '../../support/serve-process.ts';
import { until } from '../../support/until.ts';

test('the workers of one machine share a quota through their supervisor', async () => {
  const folder = await createServeFolder((settings) => ({
    ...settings,
    routes: [
      { path: '/health', public: true },
      { path: '/limited/**', public: true, rate: [{ limit: '20/h', per: 'route' }] },
    ],
    limits: { ...settings.limits, shared: true },
  }));
  onTestFinished(() => folder.remove());
  const serving = await startServe(folder, { set: ['listen.workers=3'] });
  const clients = await connectToEachWorker(folder, serving);
  onTestFinished(() => clients.forEach((client) => client.close()));
  const isAllowed = async (index: number): Promise<boolean> => {
    const reply = await clients[index]?.request({ path: '/limited/a' });
    expect([200, 429, 502]).toContain(reply?.status);
    return reply?.status !== 429;
  };
  let allowed = 0;
  for (let index = 0; index < 40; index += 1) if (await isAllowed(0)) allowed += 1;
  expect(allowed).toBe(20);
  for (const index of [1, 2])
    await until('the other workers know', async () => {
      if (!(await isAllowed(index))) return true;
      allowed += 1;
      return false;
    });
  expect(allowed).toBeLessThanOrEqual(60);
  expect(await serving.stop()).toBe(0);
});
