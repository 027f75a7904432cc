import { expect, test } from 'vitest';
import { connect, until } from '../../support/serve-process.ts';
import { countEvents, startWorkers, waitForBothWorkers, waitUntilReady } from './restart-under-load.ts';

test('O05 a worker started while the configuration is invalid uses the last valid one, and follows later changes', async () => {
  const { folder, server } = await startWorkers();
  const routeTo = (path: string) => (): void =>
    folder.configure((settings) => ({ ...settings, routes: [{ path, public: true }] }));
  await waitForBothWorkers(server, 'reloaded', routeTo('/second'));
  await waitForBothWorkers(server, 'reload_rejected', () =>
    folder.write('gatehouse.yaml', 'listen: [this is: not valid'),
  );

  const [victim = 0] = server.workers;
  process.kill(victim, 'SIGKILL');
  await until('the supervisor has noticed the exit', () => countEvents(server, 'worker_exited') === 1);
  await waitUntilReady(server);
  for (let index = 0; index < 6; index += 1) {
    const client = connect(folder, server.port);
    expect((await client.request({ path: '/second' })).status).toBe(200);
    client.close();
  }
  await waitForBothWorkers(server, 'reloaded', routeTo('/fourth'));
  const client = connect(folder, server.port);
  expect((await client.request({ path: '/fourth' })).status).toBe(200);
  client.close();
  expect(await server.stop()).toBe(0);
});
