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
  const waitSeconds = async (seconds: number): Promise<void> => {
    const end = performance.now() + seconds * 1_000;
    await until('the time has passed', () => performance.now() > end);
  };
  const openReplica = async () => {
    const server = await startServe(folder);
    const client = connect(folder, server.port, folder.alice);
    onTestFinished(() => client.close());
    return { server, client };
  };
  const refreshUntilServed = async (client: Awaited<ReturnType<typeof openReplica>>['client'], token: string) =>
    until('the store responds', async () => {
      const reply = await client.refresh(token);
      return reply.json['Error'] !== 'invalid_request' && reply.json['refresh_token'];
    });
  const [first, second] = await Promise.all([openReplica(), openReplica()]);

  const grant = await first.client.grant();
  const lost = await first.client.refresh(grant.refresh_token);
  redis.pause();
  onTestFinished(() => redis.resume());
  await waitSeconds(WINDOW + 1);
  redis.resume();
  expect(await refreshUntilServed(first.client, grant.refresh_token)).toBe(lost.json['refresh_token']);
  expect(await refreshUntilServed(second.client, grant.refresh_token)).toBe(lost.json['refresh_token']);

  const nextGrant = await first.client.grant();
  const lostToo = await first.client.refresh(nextGrant.refresh_token);
  await Promise.all([first.server.kill(), second.server.kill()]);
  await waitSeconds(WINDOW + 1);
  const [third, fourth] = await Promise.all([openReplica(), openReplica()]);
  expect(await refreshUntilServed(third.client, nextGrant.refresh_token)).toBe(lostToo.json['refresh_token']);
  expect(await refreshUntilServed(fourth.client, nextGrant.refresh_token)).toBe(lostToo.json['refresh_token']);
});

test('R03 R13 with two workers a spent token stays spent when a worker is replaced, and a lost response is repeated after a kill -9 of all processes', async () => {
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
  const running = await start();
  const [client, other] = running.clients;
  if (client === undefined || other === undefined) throw new Error('expected two workers');
  const { refresh_token: spent } = await client.grant();
  expect((await client.refresh(spent)).status).toBe(200);
  for (const client of running.clients)
    await until('the window has closed', async () => (await client.refresh(spent)).status !== 200);

  process.kill(other.worker, 'SIGKILL');
  await until('a worker has exited', () => running.server.log.some(({ event }) => event === 'worker_exited'));
  await until('the worker is replaced', async () => (await readiness(running.server)) === 200);
  const after = await connectToEachWorker(folder, running.server, folder.alice);
  onTestFinished(() => after.forEach((client) => client.close()));
  for (const client of after)
    expect(await client.refresh(spent)).toMatchObject({ status: 400, json: { Error: 'invalid_grant' } });

  const { refresh_token: token } = await client.grant();
  const lost = await client.refresh(token);
  await running.server.kill();
  const restarted = await start();
  for (const client of restarted.clients)
    expect((await client.refresh(token)).json['refresh_token']).toBe(lost.json['refresh_token']);
});
