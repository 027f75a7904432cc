import { setTimeout as pause } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { randomGrantId } from '../../src/grants/issue.ts';
import { openRedis, type RedisStore } from '../../src/stores/redis.ts';
import { type RedisServer, redisServer } from '../support/redis-server.ts';

let server: RedisServer;
let store: RedisStore;
let redis: Redis;
beforeEach(async () => {
  server = await redisServer();
  store = await openRedis({ url: server.url, maxStaleness: 60, ack: 'reachable' });
  redis = new Redis(server.port);
});
afterEach(async () => {
  redis.disconnect();
  await store.close();
  await server.stop();
});

test('V06 a replica that beats and is slow to apply a revocation is waited for', async () => {
  // As a replica on a machine that is far too busy: it says that it is there, and not yet that it knows.
  const beat = async (applied: string): Promise<void> => {
    const [seconds] = await redis.time();
    await redis.hset('{gh}:replicas', 'slow', `${applied} ${Number(seconds) * 1_000 + 999} 60000`);
  };
  await beat('0-0');
  let answered = false;
  const announcing = store.revocations
    .announce({
      of: 'grant',
      grantId: randomGrantId(),
      belowGeneration: Number.POSITIVE_INFINITY,
      keepUntil: Math.floor(Date.now() / 1_000) + 3_600,
    })
    .then(() => {
      answered = true;
    });
  for (let turn = 0; turn < 10; turn += 1) {
    await pause(200);
    await beat('0-0');
    expect(answered).toBe(false);
  }
  await beat((await redis.hget('{gh}:head', 'last')) ?? '');
  await announcing;
});
