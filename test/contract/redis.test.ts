import { afterAll, beforeAll } from 'vitest';
import type { Store } from '../../src/ports/store.ts';
import { openRedis } from '../../src/stores/redis.ts';
import { anAuthenticator } from '../support/record-keys.ts';
import { type RedisServer, redisServer } from '../support/redis-server.ts';
import { NOW } from '../support/store-fixtures.ts';
import { describeGrantIndex } from './grant-index.ts';
import { describeStore } from './record-store.ts';

let server: RedisServer;
beforeAll(async () => {
  server = await redisServer();
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
    authenticator: anAuthenticator(),
  } as const;
  // A new store refuses what was issued before it: this one has stood for a while.
  const before = await openRedis({
    ...options,
    // The last millisecond of a second: the floor is the next second, which the start waits for.
    clock: () => NOW - 3600.001,
  });
  await before.close();
  return openRedis({ ...options, clock });
};

describeStore('the store in Redis', open);
describeGrantIndex('the store in Redis', open);
