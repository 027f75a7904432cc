import { Redis } from 'ioredis';
import { open } from 'lmdb';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { resolveStoreFiles } from '../../src/stores/embedded/folder.ts';
import { openRedisStore } from '../../src/stores/redis/store.ts';
import { everyGrant } from '../contract/grant-index.ts';
import { testAuthenticator } from '../support/record-keys.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { LATER, NOW, openOwnerStore, storeTempFolder, testGrant } from '../support/store-fixtures.ts';

const identity = 'corp:01';
const query = { identity, limit: 100 };

const countEntries = async (path: string): Promise<number> => {
  const root = open<Buffer, string>({
    path: resolveStoreFiles(path).data,
    noSubdir: true,
    maxDbs: 16,
    encoding: 'binary',
  });
  const count = [...root.openDB<Buffer, [string, string]>('grantsByIdentity', { encoding: 'binary' }).getKeys()].length;
  await root.close();
  return count;
};

test('the index entry of a grant is removed when its record is swept', async () => {
  const folder = storeTempFolder();
  onTestFinished(() => folder.remove());
  const { path } = folder;
  let now = NOW;
  const store = await openOwnerStore(path, () => now);
  await store.grants.create('a', testGrant({ id: 'a', identity }), LATER);
  await store.grants.create('b', testGrant({ id: 'b', identity }), LATER + 10);
  now = LATER;
  expect(await store.sweep()).toBe(1);
  await store.close();
  expect(await countEntries(path)).toBe(1);
});

let server: RedisServer;
beforeAll(async () => {
  server = await startRedis();
});
afterAll(() => server.stop());

const options = { maxStaleness: 60, ack: 'reachable', authenticator: testAuthenticator() } as const;

test('an index entry in Redis whose grant was never created is skipped, and expires', async () => {
  let now = NOW;
  const store = await openRedisStore({ ...options, url: server.url, prefix: 'dangling', clock: () => now });
  await store.grants.create('a', testGrant({ id: 'a', identity }), LATER);
  const redis = new Redis(server.port, { replyMapping: 'legacy' });
  const [set = ''] = await redis.keys('dangling:{i*}:h');
  await redis.zadd(set, LATER * 1_000, 'never-made');
  expect((await everyGrant(store.grantIndex, query)).map(({ id }) => id)).toEqual(['a']);
  expect(await redis.zcard(set)).toBe(2);
  expect(await redis.pttl(set)).toBeGreaterThan(0);
  now = LATER;
  expect(await everyGrant(store.grantIndex, query)).toEqual([]);
  expect(await redis.exists(set)).toBe(0);
  redis.disconnect();
  await store.close();
});
