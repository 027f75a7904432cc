import { afterEach, beforeEach, vi } from 'vitest';
import type { Fault } from '../../../src/ports/fault.ts';
import { connectRedis, type RedisClient } from '../../../src/stores/redis/client.ts';
import { openRedisStore, type RedisStore, type RedisStoreOptions } from '../../../src/stores/redis/store.ts';
import { type FaultyRelay, startFaultyRelay } from '../../support/faulty-relay.ts';
import { testAuthenticator } from '../../support/record-keys.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';

export const ENDED = Number.POSITIVE_INFINITY;
/** Seconds after which announcements no longer wait for a partitioned replica, with a margin for its last heartbeat. */
export const PARTITION_SECONDS = 10;

export const expectFault = (work: () => unknown): Promise<Fault> =>
  (async () => work())().then(
    () => {
      throw new Error('expected a fault');
    },
    (error: Fault) => error,
  );
export const eventually = <T>(check: () => T): Promise<T> => vi.waitFor(check, { timeout: 15_000, interval: 10 });

/** Stores on a Redis server per test, with a clock that can be advanced. */
export function revocationsOnRedis() {
  let server: RedisServer;
  let relay: FaultyRelay;
  let admin: RedisClient;
  const openStores: RedisStore[] = [];
  /** Seconds by which the clocks are advanced. */
  let advancedBy = 0;
  const monotonic = performance.now.bind(performance);
  const now = (): number => Date.now() / 1_000 + advancedBy;
  const later = (): number => Math.floor(now()) + 3_600;

  const closeAll = async (): Promise<void> =>
    void (await Promise.all(openStores.splice(0).map((store) => store.close())));
  beforeEach(async () => {
    server = await startRedis();
    relay = await startFaultyRelay(server.port);
    admin = await connectRedis({ url: server.url, name: 'test', commandTimeout: 5_000 });
  });
  afterEach(async () => {
    vi.useRealTimers();
    advancedBy = 0;
    vi.restoreAllMocks();
    await closeAll();
    admin?.close();
    await relay?.close();
    await server?.stop();
  });

  const open = async (changes: Partial<RedisStoreOptions> = {}): Promise<RedisStore> => {
    const store = await openRedisStore({
      authenticator: testAuthenticator(),
      url: server.url,
      maxStaleness: 60,
      ack: 'reachable',
      clock: now,
      commandTimeout: 10_000,
      ...changes,
    });
    openStores.push(store);
    return store;
  };
  const bearer = (grantId: string, issuedAt = Math.floor(now()) + 60) => ({
    grantId,
    generation: 1,
    clientId: 'c',
    identity: 'i',
    issuedAt,
  });
  return {
    server: () => server,
    relay: () => relay,
    admin: () => admin,
    now,
    /** Advances the clock of Redis and of this process at once, without running any timer. */
    advance: (seconds: number): void => {
      advancedBy += seconds;
      vi.spyOn(performance, 'now').mockImplementation(() => monotonic() + advancedBy * 1_000);
    },
    later,
    open,
    openThroughRelay: (changes: Partial<RedisStoreOptions> = {}): Promise<RedisStore> =>
      open({ url: `redis://127.0.0.1:${relay.port}`, ...changes }),
    closeAll,
    bearer,
    revoke: (store: RedisStore, grantId: string): Promise<void> =>
      store.revocations.announce({ of: 'grant', grantId, belowGeneration: ENDED, keepUntil: later() }),
    isRefused: (store: RedisStore, grantId: string): boolean => store.revocations.isRevoked(bearer(grantId)),
    /** Makes Redis look as if it had been used before: a new store rejects tokens that were issued before it. */
    markAsUsed: (): Promise<unknown> =>
      admin.execute((redis) => redis.hset('{gh}:head', { epoch: 'first', floor: '0' })),
  };
}
