import { Redis } from 'ioredis';
import { open } from 'lmdb';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { resolveStoreFiles } from '../../src/stores/embedded/folder.ts';
import { openRedisStore } from '../../src/stores/redis/store.ts';
import { everyGrant } from '../contract/grant-index.ts';
import { testAuthenticator } from '../support/record-keys.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { until } from '../support/serve-process.ts';
import { LATER, NOW, openOwnerStore, storeTempFolder, testGrant } from '../support/store-fixtures.ts';

const identity = 'corp:01';
const query = { identity, limit: 100 };

/** Removes the index entries, or replaces them, to emulate a store of an earlier version. */
async function replaceEntries(path: string, entries: readonly [string, string][] = []): Promise<void> {
  const root = open<Buffer, string>({
    path: resolveStoreFiles(path).data,
    noSubdir: true,
    maxDbs: 16,
    encoding: 'binary',
  });
  const holders = root.openDB<Buffer, [string, string]>('holders', { encoding: 'binary' });
  await holders.clearAsync();
  for (const key of entries) await holders.put(key, Buffer.from([1]));
  await root.close();
}

const countEntries = async (path: string): Promise<number> => {
  const root = open<Buffer, string>({
    path: resolveStoreFiles(path).data,
    noSubdir: true,
    maxDbs: 16,
    encoding: 'binary',
  });
  const count = [...root.openDB<Buffer, [string, string]>('holders', { encoding: 'binary' }).getKeys()]
    .length;
  await root.close();
  return count;
};

test('a store of an earlier version is readable at once, and its index is built in the background', async () => {
  const folder = storeTempFolder();
  onTestFinished(() => folder.remove());
  const { path } = folder;
  const before = await openOwnerStore(path);
  const ids = Array.from({ length: 700 }, (_, at) => `g${String(at).padStart(3, '0')}`);
  await Promise.all(ids.map((id) => before.grants.create(id, testGrant({ id, identity }), LATER)));
  await before.close();
  await replaceEntries(path, [['nobody', 'g-gone']]);

  const store = await openOwnerStore(path);
  expect((await everyGrant(store.grantIndex, query)).map(({ id }) => id)).toEqual(ids);
  await until('the index is built', async () => (await countEntries(path)) === 700, 30);
  expect((await everyGrant(store.grantIndex, query)).map(({ id }) => id)).toEqual(ids);
  await store.close();
});

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
