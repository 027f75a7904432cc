import { expect, onTestFinished, test } from 'vitest';
import { newKeyring, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { redisServer } from '../support/redis-server.ts';
import { connect, makeServeFolder, startServe, until } from '../support/serve-process.ts';

/** Seconds. */
const WINDOW = 8;

test('R13 on Redis a refresh right before a stall or an outage of all replicas gets the same tokens afterwards', async () => {
  const redis = await redisServer();
  onTestFinished(() => redis.stop());
  const folder = await makeServeFolder((settings) => ({
    ...settings,
    tokens: { refresh: { retryWindow: `${WINDOW}s` } },
    store: { type: 'redis', url: redis.url },
    keys: { file: 'keys.json' },
  }));
  onTestFinished(() => folder.remove());
  writeKeyringFile(folder.file('keys.json'), newKeyring('EdDSA'), { replace: false });
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
  await Promise.all([one.server.kill9(), two.server.kill9()]);
  await passed(WINDOW + 1);
  const [again, too] = await Promise.all([open(), open()]);
  expect(await repeated(again.client, second.refresh_token)).toBe(lostToo.json['refresh_token']);
  expect(await repeated(too.client, second.refresh_token)).toBe(lostToo.json['refresh_token']);
});
