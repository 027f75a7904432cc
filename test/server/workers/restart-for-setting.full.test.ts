import { expect, test } from 'vitest';
import { connect, until } from '../../support/serve-process.ts';
import { countEvents, startWorkerLoad, startWorkers } from './restart-under-load.ts';

test('O06 a changed setting that is read at start is applied by new workers, and no request fails', async () => {
  const { folder, server } = await startWorkers();
  const load = await startWorkerLoad(folder, server);
  const requestLongUrl = async (): Promise<number> => {
    const client = connect(folder, server.port);
    const { status } = await client.request({ path: `/health?${'a'.repeat(2_000)}` });
    client.close();
    return status;
  };
  expect(await requestLongUrl()).toBe(200);
  folder.configure((settings) => ({ ...settings, limits: { ...settings.limits, url: '1KiB' } }));
  await until('all workers are replaced', () => countEvents(server, 'workers_restarted') === 1, 60);
  expect([await requestLongUrl(), await requestLongUrl(), await requestLongUrl()]).toEqual([414, 414, 414]);
  await load.waitForMore(50);
  await load.stop();
  expect(load.failures).toEqual([]);
  expect(countEvents(server, 'workers_restarting')).toBe(1);
});
