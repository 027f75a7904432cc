import { expect, test } from 'vitest';
import { connect, until } from '../../support/serve-process.ts';
import { count, restartWorkers, startWorkers, underLoad } from './restart-under-load.ts';

test('O04 SIGUSR2 replaces the workers one by one under load, over HTTP/1.1 and HTTP/2, and no request fails', () =>
  restartWorkers(1));

test('O06 a changed setting that is read at start is applied by new workers, under load', async () => {
  const { folder, server } = await startWorkers();
  const load = await underLoad(folder, server);
  const ask = async (): Promise<number> => {
    const client = connect(folder, server.port);
    const { status } = await client.request({ path: `/health?${'a'.repeat(2_000)}` });
    client.close();
    return status;
  };
  expect(await ask()).toBe(200);
  folder.configure((settings) => ({ ...settings, limits: { ...settings.limits, url: '1KiB' } }));
  await until('all are replaced', () => count(server, 'workers_restarted') === 1, 60);
  expect([await ask(), await ask(), await ask()]).toEqual([414, 414, 414]);
  await load.waitForMore(50);
  await load.stop();
  expect(load.failures).toEqual([]);
  expect(count(server, 'workers_restarting')).toBe(1);
});
