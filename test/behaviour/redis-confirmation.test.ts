import { Redis } from 'ioredis';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { Fault } from '../../src/ports/fault.ts';
import { openRedis, type RedisStore } from '../../src/stores/redis.ts';
import { type RedisPair, redisPair } from '../chaos/redis-pair.ts';
import { redisServer } from '../support/redis-server.ts';
import { aGrant } from '../support/store-fixtures.ts';
import { type FaultyWay, faultyWay } from '../support/tcp-fault.ts';

const later = Math.floor(Date.now() / 1_000) + 3_600;

let pair: RedisPair;
let way: FaultyWay;
let store: RedisStore;
beforeEach(async () => {
  pair = await redisPair();
  way = await faultyWay(pair.primary.port);
  store = await openRedis({
    url: `redis://127.0.0.1:${way.port}`,
    maxStaleness: 60,
    ack: 'reachable',
    replicas: 1,
    commandTimeout: 2_000,
  });
});
afterEach(async () => {
  await store.close();
  await way.close();
  await pair.close();
});

test('S08 a write is not taken for confirmed when its connection broke before its replicas had answered', async () => {
  // A replica of the replica: the new primary has one that answers from its first moment on.
  const third = await redisServer(['--replicaof', '127.0.0.1', String(pair.replica.port)]);
  const atThird = new Redis(third.port);
  try {
    const isFollowing = async (): Promise<void> =>
      expect(await atThird.info('replication')).toMatch(/master_link_status:up/);
    await vi.waitFor(isFollowing, { timeout: 20_000, interval: 50 });
    expect(await store.grants.create('before', aGrant(), later)).toBe('created');
    pair.part();
    const outcome = store.grants.create('unconfirmed', aGrant(), later).then(
      () => 'created',
      (error: Fault) => error.code,
    );
    const isWritten = async (): Promise<void> =>
      expect(await pair.admin.exists('gh:{unconfirmed}:g')).toBe(1);
    await vi.waitFor(isWritten, { timeout: 10_000, interval: 1 });
    // WAIT goes out again by the next connection, to a server that has never heard of the write.
    await pair.promote([way]);
    expect(await outcome).toBe('store_unavailable');
    expect(await pair.admin.exists('gh:{unconfirmed}:g')).toBe(0);
    const again = async (): Promise<void> =>
      expect(await store.grants.create('unconfirmed', aGrant(), later)).toBe('created');
    await vi.waitFor(again, { timeout: 10_000, interval: 50 });
  } finally {
    atThird.disconnect();
    await third.stop();
  }
});
