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

let stores = 0;

const open = async (clock: () => number): Promise<Store> => {
  stores += 1;
  const options = {
    url: server.url,
    prefix: `s${stores}`,
    maxStaleness: 60,
    ack: 'reachable',
    authenticator: testAuthenticator(),
  } as const;
  // A new store refuses what was issued before it: this one has stood for a while.
  const before = await openRedisStore({
    ...options,
    // The last millisecond of a second: the floor is the next second, which the start waits for.
    clock: () => NOW - 3600.001,
  });
  await before.close();
  return openRedisStore({ ...options, clock });
};

describeStore('the store in Redis', open);
describeGrantIndex('the store in Redis', open);
