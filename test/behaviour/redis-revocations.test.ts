import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { randomGrantId } from '../../src/grants/issue.ts';
import type { Fault } from '../../src/ports/fault.ts';
import { openRedis, type RedisOptions, type RedisStore } from '../../src/stores/redis.ts';
import { connectRedis, type RedisClient } from '../../src/stores/redis-client.ts';
import { type RedisServer, redisServer } from '../support/redis-server.ts';
import { type FaultyWay, faultyWay } from '../support/tcp-fault.ts';

const ENDED = Number.POSITIVE_INFINITY;
/** The clock of Redis in a test that moves it. */
let moved = 0;
const now = (): number => Date.now() / 1_000 + moved;
const monotonic = performance.now.bind(performance);
/** Moves the clock of Redis and that of this process; no event comes in between. */
const skip = (seconds: number): void => {
  moved += seconds;
  vi.spyOn(performance, 'now').mockImplementation(() => monotonic() + moved * 1_000);
};
afterEach(() => {
  vi.useRealTimers();
  moved = 0;
  vi.restoreAllMocks();
});
const later = (): number => Math.floor(now()) + 3_600;

const bearer = (grantId: string, issuedAt = Math.floor(now()) + 60) => ({
  grantId,
  generation: 1,
  clientId: 'c',
  identity: 'i',
  issuedAt,
});
const end = (store: RedisStore, grantId: string): Promise<void> =>
  store.revocations.announce({ of: 'grant', grantId, belowGeneration: ENDED, keepUntil: later() });
const refuses = (store: RedisStore, grantId: string): boolean => store.revocations.isRevoked(bearer(grantId));
const faultOf = (work: () => unknown): Promise<Fault> =>
  (async () => work())().then(
    () => {
      throw new Error('there was no fault');
    },
    (error: Fault) => error,
  );
/** As if it had stood for long: a new store refuses what was issued before it. */
const aged = (): Promise<unknown> =>
  admin.ask((redis) => redis.hset('{gh}:head', { epoch: 'first', floor: '0' }));
const soon = <T>(check: () => T): Promise<T> => vi.waitFor(check, { timeout: 15_000, interval: 10 });

let server: RedisServer;
let way: FaultyWay;
let admin: RedisClient;
const opened: RedisStore[] = [];

const open = async (changes: Partial<RedisOptions> = {}): Promise<RedisStore> => {
  const store = await openRedis({
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
/** Seconds without a beat after which a replica is not waited for; more than that, for its last one may be under way. */
const CUT_OFF = 10;
const throughWay = (changes: Partial<RedisOptions> = {}): Promise<RedisStore> =>
  open({ url: `redis://127.0.0.1:${way.port}`, ...changes });

beforeEach(async () => {
  server = await redisServer();
  way = await faultyWay(server.port);
  admin = await connectRedis({ url: server.url, name: 'test', commandTimeout: 5_000 });
});
afterEach(async () => {
  await Promise.all(opened.splice(0).map((store) => store.close()));
  admin.close();
  await way.close();
  await server.stop();
});

describe('a revocation applies on every replica', () => {
  test('V06 once it is acknowledged no replica accepts the token', async () => {
    const stores = [await open(), await open(), await open()] as const;
    const accepted: string[] = [];
    const ids = Array.from({ length: 300 }, randomGrantId);
    await Promise.all(
      ids.map(async (id, index) => {
        await end(stores[index % 3] ?? stores[0], id);
        for (const store of stores) if (!refuses(store, id)) accepted.push(id);
      }),
    );
    expect(accepted).toEqual([]);
    expect(refuses(stores[0], randomGrantId())).toBe(false);
  });

  test('V13 whole clients and identities, and superseded generations, apply everywhere', async () => {
    const [one, two] = [await open(), await open()];
    const issuedAt = Math.floor(now()) + 60;
    const id = randomGrantId();
    await one.revocations.announce({ of: 'grant', grantId: id, belowGeneration: 3, keepUntil: later() });
    await one.revocations.announce({
      of: 'client',
      clientId: 'gone',
      notBefore: issuedAt,
      keepUntil: later(),
    });
    await one.revocations.announce({
      of: 'identity',
      identity: 'left',
      notBefore: issuedAt,
      keepUntil: later(),
    });
    const three = await open();
    for (const store of [one, two, three]) {
      const revoked = (changes: object): boolean =>
        store.revocations.isRevoked({ ...bearer(id, issuedAt), generation: 3, ...changes });
      expect(revoked({})).toBe(false);
      expect(revoked({ generation: 2 })).toBe(true);
      expect(revoked({ clientId: 'gone', issuedAt: issuedAt - 1 })).toBe(true);
      expect(revoked({ clientId: 'gone' })).toBe(false);
      expect(revoked({ identity: 'left', issuedAt: issuedAt - 1 })).toBe(true);
    }
  });

  test('V08 a replica that starts late knows all that was revoked before, and what is revoked while it starts', async () => {
    const one = await open();
    const before = Array.from({ length: 1_500 }, randomGrantId);
    await Promise.all(before.map((id) => end(one, id)));
    const meanwhile: string[] = [];
    let starting = true;
    const revoking = (async () => {
      for (;;) {
        if (!starting) return;
        const id = randomGrantId();
        await end(one, id);
        if (starting) meanwhile.push(id);
      }
    })();
    // Longer than a revocation takes, so that some fall into its start.
    way.slowDown(10, 20);
    const two = await throughWay();
    starting = false;
    const known = [...meanwhile];
    const missed = [...before, ...known].filter((id) => !refuses(two, id));
    await revoking;
    expect(known.length).toBeGreaterThan(0);
    expect(missed).toEqual([]);
  });

  test('a replica that stops is not waited for', async () => {
    const [one, two] = [await open(), await open()];
    await two.close();
    expect(await admin.ask((redis) => redis.hlen('{gh}:replicas'))).toBe(1);
    await end(one, randomGrantId());
  });
});

describe('while Redis cannot be reached', () => {
  test('V05 a revocation is a fault, and the token stays valid', async () => {
    const one = await throughWay({ commandTimeout: 250 });
    const id = randomGrantId();
    way.set('refuse');
    const fault = await faultOf(() => end(one, id));
    expect(fault.code).toBe('store_unavailable');
    expect(refuses(one, id)).toBe(false);
  });

  test('S02 tokens are checked from memory for `maxStaleness`, then none is accepted, then it recovers', async () => {
    const one = await throughWay({ commandTimeout: 250 });
    const id = randomGrantId();
    await end(one, id);
    way.set('refuse');
    skip(50 - one.revocations.staleness());
    expect([refuses(one, id), refuses(one, randomGrantId())]).toEqual([true, false]);
    // The lease runs from the last beat that was confirmed.
    skip(60.001 - one.revocations.staleness());
    expect((await faultOf(() => refuses(one, id))).code).toBe('store_unavailable');
    expect((await faultOf(() => one.probe())).code).toBe('store_unavailable');
    way.set('pass');
    await soon(() => expect(refuses(one, id)).toBe(true));
    await soon(() => one.probe());
  });

  test('V07 a replica that was cut off learns what was revoked meanwhile when it is back', async () => {
    const [one, two] = [await open(), await throughWay()];
    way.set('black hole');
    skip(CUT_OFF);
    const ids = Array.from({ length: 20 }, randomGrantId);
    for (const id of ids) await end(one, id);
    expect(ids.filter((id) => !refuses(one, id))).toEqual([]);
    way.set('pass');
    await soon(() => expect(ids.filter((id) => !refuses(two, id))).toEqual([]));
  });

  test('with `ack: everywhere` a revocation waits for the lease of a replica that was cut off', async () => {
    const one = await open({ ack: 'everywhere' });
    const two = await throughWay({ ack: 'everywhere' });
    const id = randomGrantId();
    await end(one, randomGrantId());
    way.set('refuse');
    skip(CUT_OFF);
    const fault = await faultOf(() => end(one, id));
    expect(fault.message).toMatch(/cut off/);
    expect(fault.retryAfter).toBeGreaterThan(0);
    expect(fault.retryAfter).toBeLessThanOrEqual(60 - CUT_OFF);
    skip(fault.retryAfter ?? 0);
    await end(one, id);
    // The replica that was cut off accepts no token any more.
    expect((await faultOf(() => refuses(two, id))).code).toBe('store_unavailable');
  });
});

describe('when Redis has lost something', () => {
  test('V09 an emptied Redis is filled again by the replicas, and no revoked token is accepted again', async () => {
    await aged();
    const [one, two] = [await open(), await open()];
    const ids = Array.from({ length: 500 }, randomGrantId);
    await Promise.all(ids.map((id) => end(one, id)));
    await admin.ask((redis) => redis.flushall());
    expect(ids.filter((id) => !refuses(two, id))).toEqual([]);
    await soon(async () => expect(await admin.ask((redis) => redis.zcard('{gh}:rev'))).toBe(500));
    const three = await open();
    expect(ids.filter((id) => !refuses(three, id))).toEqual([]);
    // What those replicas issued before still counts: they knew everything, and said so.
    await soon(() => expect(three.revocations.isRevoked(bearer(randomGrantId(), 1_000))).toBe(false));
  });

  test('V09 an empty Redis in place of the old is filled again after a reconnection', async () => {
    await aged();
    const one = await open();
    const id = randomGrantId();
    await end(one, id);
    await server.kill();
    const next = await redisServer([], { at: server.port });
    try {
      const two = await open();
      await soon(() => expect(refuses(two, id)).toBe(true));
      expect(refuses(one, id)).toBe(true);
      await soon(() =>
        expect(two.revocations.isRevoked(bearer(randomGrantId(), Math.floor(now()) - 60))).toBe(false),
      );
    } finally {
      await Promise.all(opened.splice(0).map((store) => store.close()));
      await next.stop();
    }
  });

  test('V09 when no replica is left that knew them, tokens from before are refused', async () => {
    const one = await open();
    await end(one, randomGrantId());
    await one.close();
    await admin.ask((redis) => redis.flushall());
    const two = await open();
    expect(two.revocations.isRevoked(bearer(randomGrantId(), Math.floor(now()) - 60))).toBe(true);
    expect(two.revocations.isRevoked(bearer(randomGrantId(), Math.ceil(now())))).toBe(false);
  });

  test('V10 a log that was trimmed past the reader is noticed, and everything is loaded again', async () => {
    const [one, two] = [await open(), await throughWay()];
    way.set('black hole');
    skip(CUT_OFF);
    const ids = Array.from({ length: 50 }, randomGrantId);
    for (const id of ids) await end(one, id);
    await admin.ask((redis) => redis.xtrim('{gh}:revs', 'MAXLEN', 1));
    way.set('pass');
    await soon(() => expect(ids.filter((id) => !refuses(two, id))).toEqual([]));
  });

  test('V11 entries lost in a failover are put back by the replicas that knew them', async () => {
    const [one, two] = [await open(), await open()];
    await end(one, randomGrantId());
    const head = await admin.ask((redis) => redis.hgetall('{gh}:head'));
    const lost = Array.from({ length: 20 }, randomGrantId);
    for (const id of lost) await end(one, id);
    // As a replica that never got the last entries, and was promoted.
    await admin.ask((redis) =>
      redis
        .multi()
        .zrem('{gh}:rev', ...lost.map((id) => `g:${id}`))
        .xtrim('{gh}:revs', 'MAXLEN', 0)
        .hset('{gh}:head', 'last', head['last'] ?? '')
        .exec(),
    );
    await soon(async () => expect(await admin.ask((redis) => redis.zcard('{gh}:rev'))).toBe(21));
    expect(lost.filter((id) => !refuses(one, id) || !refuses(two, id))).toEqual([]);
    const three = await open();
    expect(lost.filter((id) => !refuses(three, id))).toEqual([]);
    const after = randomGrantId();
    await end(three, after);
    await soon(() =>
      expect([one, two, three].map((store) => refuses(store, after))).toEqual([true, true, true]),
    );
  });
});

test('V12 expired entries are removed from Redis by a sweep every ten seconds', async () => {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
  const one = await open();
  const past = Math.floor(now()) - 1;
  await one.revocations.announce({ of: 'grant', grantId: 'old', belowGeneration: ENDED, keepUntil: past });
  await one.revocations.announce({ of: 'client', clientId: 'old', notBefore: 5, keepUntil: past });
  await end(one, 'young');
  vi.advanceTimersByTime(10_000);
  vi.useRealTimers();
  await soon(async () => {
    expect(await admin.ask((redis) => redis.zrange('{gh}:rev', '0', '-1'))).toEqual(['g:young']);
    expect(await admin.ask((redis) => redis.hlen('{gh}:lim'))).toBe(0);
  });
});

test('V09 tokens issued in the very second in which an empty Redis is first used are rejected, later ones accepted', async () => {
  const before = Math.floor(now());
  const store = await open();
  const isRevoked = (issuedAt: number): boolean =>
    store.revocations.isRevoked(bearer(randomGrantId(), issuedAt));
  expect([isRevoked(before), isRevoked(Math.floor(now()))]).toEqual([true, false]);
});

test('V09 a replica that was cut off for longer than its lease does not vouch for an emptied Redis, whatever it sends first', async () => {
  await aged();
  const stale = await throughWay();
  const other = await open();
  const grantId = randomGrantId();
  const issuedAt = Math.floor(now());
  way.set('black hole');
  skip(100);
  await soon(() => expect(other.revocations.isRevoked(bearer(randomGrantId()))).toBe(false));
  await other.close();
  await admin.ask((redis) => redis.flushall());
  way.set('refuse');
  way.set('pass');
  // The first command that arrives is a revocation of another grant, or a beat.
  await soon(() => end(stale, randomGrantId()));
  const started = await open();
  expect(started.revocations.isRevoked(bearer(grantId, issuedAt))).toBe(true);
  await soon(() => expect(stale.revocations.isRevoked(bearer(grantId, issuedAt))).toBe(true));
});
