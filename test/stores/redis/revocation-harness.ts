import { afterEach, beforeEach, vi } from 'vitest';
import type { Fault } from '../../../src/ports/fault.ts';
import { connectRedis, type RedisClient } from '../../../src/stores/redis/client.ts';
import { openRedisStore, type RedisStore, type RedisStoreOptions } from '../../../src/stores/redis/store.ts';
import { type FaultyRelay, startFaultyRelay } from '../../support/faulty-relay.ts';
import { testAuthenticator } from '../../support/record-keys.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';

export const ENDED = Number.POSITIVE_INFINITY;
/** Seconds without a beat after which a replica is not waited for; more than that, for its last one may be under way. */
export const CUT_OFF = 10;

export const faultOf = (work: () => unknown): Promise<Fault> =>
  (async () => work())().then(
    () => {
      throw new Error('there was no fault');
    },
    (error: Fault) => error,
  );
export const soon = <T>(check: () => T): Promise<T> => vi.waitFor(check, { timeout: 15_000, interval: 10 });

/** Stores on a Redis of its own for each test, with a clock that can be moved. */
export function revocationsOnRedis() {
  let server: RedisServer;
  let relay: FaultyRelay;
  let admin: RedisClient;
  const opened: RedisStore[] = [];
  /** Seconds that the clock of Redis in a test is moved by. */
  let moved = 0;
  const monotonic = performance.now.bind(performance);
  const now = (): number => Date.now() / 1_000 + moved;
  const later = (): number => Math.floor(now()) + 3_600;

  const closeAll = async (): Promise<void> =>
    void (await Promise.all(opened.splice(0).map((store) => store.close())));
  beforeEach(async () => {
    server = await startRedis();
    relay = await startFaultyRelay(server.port);
    admin = await connectRedis({ url: server.url, name: 'test', commandTimeout: 5_000 });
  });
  afterEach(async () => {
    vi.useRealTimers();
    moved = 0;
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
    opened.push(store);
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
    way: () => relay,
    admin: () => admin,
    now,
    /** Moves the clock of Redis and that of this process; no event comes in between. */
    skip: (seconds: number): void => {
      moved += seconds;
      vi.spyOn(performance, 'now').mockImplementation(() => monotonic() + moved * 1_000);
    },
    later,
    open,
    throughWay: (changes: Partial<RedisStoreOptions> = {}): Promise<RedisStore> =>
      open({ url: `redis://127.0.0.1:${relay.port}`, ...changes }),
    closeAll,
    bearer,
    end: (store: RedisStore, grantId: string): Promise<void> =>
      store.revocations.announce({ of: 'grant', grantId, belowGeneration: ENDED, keepUntil: later() }),
    refuses: (store: RedisStore, grantId: string): boolean => store.revocations.isRevoked(bearer(grantId)),
    /** As if it had been used for long: a new store rejects tokens that were issued before it. */
    aged: (): Promise<unknown> =>
      admin.execute((redis) => redis.hset('{gh}:head', { epoch: 'first', floor: '0' })),
  };
}
