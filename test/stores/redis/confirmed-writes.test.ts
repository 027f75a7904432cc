import { Redis } from 'ioredis';
import { afterEach, beforeEach, expect, test } from 'vitest';
import type { Fault } from '../../../src/ports/fault.ts';
import { openRedisStore, type RedisStore } from '../../../src/stores/redis/store.ts';
import { type RedisPair, startRedisPair } from '../../chaos/redis-pair.ts';
import { type FaultyRelay, startFaultyRelay } from '../../support/faulty-relay.ts';
import { testAuthenticator } from '../../support/record-keys.ts';
import { startRedis } from '../../support/redis-server.ts';
import { until } from '../../support/serve-process.ts';
import { testGrant } from '../../support/store-fixtures.ts';

const later = Math.floor(Date.now() / 1_000) + 3_600;

let pair: RedisPair;
let relay: FaultyRelay;
let store: RedisStore;
beforeEach(async () => {
  pair = await startRedisPair();
  relay = await startFaultyRelay(pair.primary.port);
  store = await openRedisStore({
    authenticator: testAuthenticator(),
    url: `redis://127.0.0.1:${relay.port}`,
    maxStaleness: 60,
    ack: 'reachable',
    replicas: 1,
    commandTimeout: 10_000,
  });
});
afterEach(async () => {
  await store.close();
  await relay.close();
  await pair.close();
});

test('S08 a write is not confirmed if its connection is lost before the replicas have acknowledged it', async () => {
  // A replica of the replica, so that the new primary has an online replica from the start.
  const third = await startRedis(['--replicaof', '127.0.0.1', String(pair.replica.port)]);
  try {
    const atReplica = new Redis(pair.replica.port);
    const isFollowing = async (): Promise<boolean> => /state=online/.test(await atReplica.info('replication'));
    await until('the second replica is online', isFollowing, 30).finally(() => atReplica.disconnect());
    expect(await store.grants.create('before', testGrant(), later)).toBe('created');
    pair.partition();
    const outcome = store.grants.create('unconfirmed', testGrant(), later).then(
      () => 'created',
      (error: Fault) => error.code,
    );
    await until('the primary has the write', async () => (await pair.admin.exists('gh:{unconfirmed}:g')) === 1);
    // WAIT is repeated on the next connection, to a server that does not have the write.
    await pair.promote([relay]);
    expect(await outcome).toBe('store_unavailable');
    expect(await pair.admin.exists('gh:{unconfirmed}:g')).toBe(0);
    const retry = (): Promise<unknown> => store.grants.create('unconfirmed', testGrant(), later);
    expect(await until('the write is confirmed', () => retry().catch(() => false), 30)).toBe('created');
  } finally {
    await third.stop();
  }
});
