import { Redis } from 'ioredis';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { randomGrantId } from '../../../src/grants/issue.ts';
import { openRedisStore, type RedisStore } from '../../../src/stores/redis/store.ts';
import { testAuthenticator } from '../../support/record-keys.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import { until } from '../../support/serve-process.ts';
import { LATER, NOW } from '../../support/store-fixtures.ts';

let server: RedisServer;
let store: RedisStore;
let redis: Redis;
beforeEach(async () => {
  server = await startRedis();
  store = await openRedisStore({
    authenticator: testAuthenticator(),
    url: server.url,
    maxStaleness: 60,
    ack: 'reachable',
    clock: () => NOW,
    commandTimeout: 10_000,
  });
  redis = new Redis(server.port);
});
afterEach(async () => {
  redis.disconnect();
  await store.close();
  await server.stop();
});

test('V06 a revocation waits for a replica that sends heartbeats and has not applied it yet', async () => {
  // The clock of Redis is fixed, so that the heartbeat stays recent.
  const sendHeartbeat = (applied: string): Promise<unknown> =>
    redis.hset('{gh}:replicas', 'slow', `${applied} ${NOW * 1_000} 60000`);
  await sendHeartbeat('0-0');
  let isAcknowledged = false;
  const announcing = store.revocations
    .announce({
      of: 'grant',
      grantId: randomGrantId(),
      belowGeneration: Number.POSITIVE_INFINITY,
      keepUntil: LATER,
    })
    .then(() => {
      isAcknowledged = true;
    });
  // The announcer polls which replicas have applied the revocation.
  const countPolls = async (): Promise<number> =>
    Number(/cmdstat_hgetall:calls=(\d+)/.exec(await redis.info('commandstats'))?.[1] ?? 0);
  const before = await countPolls();
  await until('the announcer has polled several times', async () => (await countPolls()) > before + 5);
  expect(isAcknowledged).toBe(false);
  await sendHeartbeat((await redis.hget('{gh}:head', 'last')) ?? '');
  await announcing;
});
