import { expect, onTestFinished, test } from 'vitest';
import { createKeyringFile, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { connectToEachWorker } from '../support/connect-to-each-worker.ts';
import { startRedis } from '../support/redis-server.ts';
import { connect, createServeFolder, readiness, startServe, until } from '../support/serve-process.ts';

/** Seconds. */
const WINDOW = 8;

test('R13 on Redis a refresh right before a stall or an outage of all replicas gets the same tokens afterwards', async () => {
  const redis = await startRedis();
  onTestFinished(() => redis.stop());
  const folder = await createServeFolder((settings) => ({
    ...settings,
    tokens: { refresh: { retryWindow: `${WINDOW}s` } },
    store: { type: 'redis', url: redis.url },
    keys: { file: 'keys.json' },
  }));
  onTestFinished(() => folder.remove());
  writeKeyringFile(folder.file('keys.json'), createKeyringFile('EdDSA'), { replace: false });
  const passed = async (seconds: number): Promise<void> => {
    const end = performance.now() + seconds * 1_000;
    await until('the time has passed', () => performance.now() > end);
  };
  const open = async () => {
    const server = await startServe(folder);
    const client = connect(folder, server.port, folder.alice);
    onTestFinished(() => client.close());
    return { server, client };
  };
  const repeated = async (client: Awaited<ReturnType<typeof open>>['client'], token: string) =>
    until('the store answers', async () => {
      const reply = await client.refresh(token);
      return reply.json['Error'] !== 'invalid_request' && reply.json['refresh_token'];
    });
  const [one, two] = await Promise.all([open(), open()]);

  const first = await one.client.grant();
  const lost = await one.client.refresh(first.refresh_token);
  redis.pause();
  onTestFinished(() => redis.resume());
  await passed(WINDOW + 1);
  redis.resume();
  expect(await repeated(one.client, first.refresh_token)).toBe(lost.json['refresh_token']);
  expect(await repeated(two.client, first.refresh_token)).toBe(lost.json['refresh_token']);

  const second = await one.client.grant();
  const lostToo = await one.client.refresh(second.refresh_token);
  await Promise.all([one.server.kill(), two.server.kill()]);
  await passed(WINDOW + 1);
  const [again, too] = await Promise.all([open(), open()]);
  expect(await repeated(again.client, second.refresh_token)).toBe(lostToo.json['refresh_token']);
  expect(await repeated(too.client, second.refresh_token)).toBe(lostToo.json['refresh_token']);
});

test('R03 R13 with two workers a spent token stays spent when a worker is replaced, and a lost response is repeated after a kill -9 of all', async () => {
  const folder = await createServeFolder((settings) => ({
    ...settings,
    tokens: { refresh: { retryWindow: '8s', reuse: 'reject' } },
  }));
  onTestFinished(() => folder.remove());
  const start = async () => {
    const server = await startServe(folder, { set: ['listen.workers=2'] });
    const clients = await connectToEachWorker(folder, server, folder.alice);
    onTestFinished(() => clients.forEach((client) => client.close()));
    return { server, clients };
  };
  const first = await start();
  const [one, other] = first.clients;
  if (one === undefined || other === undefined) throw new Error('there are two workers');
  const { refresh_token: spent } = await one.grant();
  expect((await one.refresh(spent)).status).toBe(200);
  for (const client of first.clients)
    await until('the window has closed', async () => (await client.refresh(spent)).status !== 200);

  process.kill(other.worker, 'SIGKILL');
  await until('a worker ended', () => first.server.log.some(({ event }) => event === 'worker_exited'));
  await until('it is replaced', async () => (await readiness(first.server)) === 200);
  const after = await connectToEachWorker(folder, first.server, folder.alice);
  onTestFinished(() => after.forEach((client) => client.close()));
  for (const client of after)
    expect(await client.refresh(spent)).toMatchObject({ status: 400, json: { Error: 'invalid_grant' } });

  const { refresh_token: token } = await one.grant();
  const lost = await one.refresh(token);
  await first.server.kill();
  const second = await start();
  for (const client of second.clients)
    expect((await client.refresh(token)).json['refresh_token']).toBe(lost.json['refresh_token']);
});
