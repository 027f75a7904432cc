import { afterAll, beforeAll } from 'vitest';
import type { Store } from '../../src/ports/store.ts';
import { openRedisStore } from '../../src/stores/redis/store.ts';
import { testAuthenticator } from '../support/record-keys.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { NOW } from '../support/store-fixtures.ts';
import { describeGrantIndex } from './grant-index.ts';
import { describeStore } from './record-store.ts';

let server: RedisServer;
beforeAll(async () => {
  server = await startRedis();
});
afterAll(() => server.stop());

let storeCount = 0;

const openStore = async (clock: () => number): Promise<Store> => {
  storeCount += 1;
  const options = {
    url: server.url,
    prefix: `s${storeCount}`,
    maxStaleness: 60,
    ack: 'reachable',
    authenticator: testAuthenticator(),
  } as const;
  // A new store refuses tokens issued before it, so first create one in the past.
  const before = await openRedisStore({
    ...options,
    // The last millisecond of a second: the start waits for the next second, before which all tokens are refused.
    clock: () => NOW - 3600.001,
  });
  await before.close();
  return openRedisStore({ ...options, clock });
};

describeStore('the store in Redis', openStore);
describeGrantIndex('the store in Redis', openStore);
