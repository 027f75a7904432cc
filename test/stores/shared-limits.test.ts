import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { PendingEntry, SharedLimits } from '../../src/ports/shared-limits.ts';
import { createRateLimitClient, handleRateLimitRequest, type RateLimitClient } from '../../src/server/workers/ipc.ts';
import { createMemoryLimits } from '../../src/stores/memory-limits.ts';
import { openRedisStore } from '../../src/stores/redis/store.ts';
import { testAuthenticator } from '../support/record-keys.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { NOW } from '../support/store-fixtures.ts';

let server: RedisServer;
beforeAll(async () => {
  server = await startRedis();
});
afterAll(() => server.stop());

const cleanups: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of cleanups.splice(0)) await close();
});

let storeCount = 0;
const kinds: readonly (readonly [string, (now: () => number) => Promise<SharedLimits>])[] = [
  ['memory', async (now) => createMemoryLimits(now)],
  [
    'the supervisor of workers',
    async (now) => {
      const counted = createMemoryLimits(now);
      const worker: RateLimitClient = createRateLimitClient(
        (request) => void handleRateLimitRequest(counted, request).then((response) => worker.onResponse(response)),
        1,
      );
      return worker;
    },
  ],
  [
    'Redis',
    async (clock) => {
      storeCount += 1;
      const store = await openRedisStore({
        url: server.url,
        authenticator: testAuthenticator(),
        prefix: `l${storeCount}`,
        maxStaleness: 60,
        ack: 'reachable',
        clock,
      });
      cleanups.push(() => store.close());
      if (store.limits === undefined) throw new Error('no limits');
      return store.limits;
    },
  ],
];

describe.each(kinds)('counts in %s', (_, openLimits) => {
  let now = NOW;
  const rate = { burst: 3, perSecond: 0.5 };

  test('a bucket returns its level, refills, and never exceeds its size', async () => {
    now = NOW;
    const limits = await openLimits(() => now);
    expect([await limits.take('a', rate, 1), await limits.take('a', rate, 1)]).toEqual([3, 2]);
    expect([await limits.take('a', rate, 1), await limits.take('a', rate, 1)]).toEqual([1, 0]);
    expect(await limits.take('a', rate, 0)).toBe(0);
    expect(await limits.take('b', rate, 0)).toBe(3);
    now += 3;
    expect(await limits.take('a', rate, 1)).toBeCloseTo(1.5);
    expect(await limits.take('a', rate, 1)).toBeCloseTo(0.5);
    now += 600;
    expect(await limits.take('a', rate, 0)).toBe(3);
    await limits.take('a', rate, 1);
    expect(await limits.take('a', rate, -1)).toBe(2);
    expect(await limits.take('a', rate, -1)).toBe(3);
    expect(await limits.take('a', rate, 0)).toBe(3);
  });

  test('a debt can be taken from an empty bucket, down to its negative size', async () => {
    now = NOW;
    const limits = await openLimits(() => now);
    for (let attempt = 0; attempt < 20; attempt += 1) await limits.take('a', rate, 1, true);
    expect(await limits.take('a', rate, 0)).toBe(-3);
    now += 7;
    expect(await limits.take('a', rate, 1)).toBeCloseTo(0.5);
    now += 2;
    expect(await limits.take('a', rate, 1)).toBeGreaterThanOrEqual(1);
  });

  test('concurrent calls never get more than the bucket holds', async () => {
    now = NOW;
    const limits = await openLimits(() => now);
    const levels = await Promise.all(Array.from({ length: 50 }, () => limits.take('a', rate, 1)));
    expect(levels.filter((level) => level >= 1)).toHaveLength(3);
    const counts = await Promise.all(Array.from({ length: 50 }, () => limits.count('a', { max: 7, seconds: 60 }, 1)));
    expect(counts.filter((before) => before < 7)).toHaveLength(7);
  });

  test('a count lasts for its own period and can be decremented', async () => {
    now = NOW;
    const limits = await openLimits(() => now);
    const getCount = () => limits.count('a', { seconds: 0 }, 0);
    await limits.count('a', { seconds: 60 }, 2);
    await limits.count('a', { seconds: 600 }, 3);
    expect(await getCount()).toBe(5);
    await limits.count('a', { seconds: 600 }, -1);
    expect(await getCount()).toBe(4);
    now += 59;
    expect(await getCount()).toBe(4);
    now += 32;
    expect(await getCount()).toBe(2);
    now += 600;
    expect(await getCount()).toBe(0);
    await limits.count('a', { seconds: 60 }, -5);
    expect(await getCount()).toBe(0);
    expect(await limits.count('a', { max: 1, seconds: 60 }, 1)).toBe(0);
  });

  describe('pending entries', () => {
    // One store for all tests, with one limit per test.
    let limits: SharedLimits;
    let closeLast: readonly (() => Promise<void>)[];
    let limit = '';
    let entryCount = 0;
    beforeAll(async () => {
      limits = await openLimits(() => now);
      closeLast = cleanups.splice(0);
    });
    afterAll(async () => {
      for (const close of closeLast) await close();
    });
    beforeEach(() => {
      now = NOW;
      limit = `limit-${(entryCount += 1)}`;
    });
    /** `networks` lists the networks from wide to narrow, such as `A a x`. */
    const createEntry = (networks: string): PendingEntry => ({
      id: `id-${(entryCount += 1)}`,
      networks: networks.split(' '),
      expires: now + 300 + entryCount,
    });
    const pendingLimits = { total: 10, seconds: 300 };
    /** Tries to admit `count` entries of one network, and returns those admitted. */
    const admitMany = async (networks: string, count: number): Promise<PendingEntry[]> => {
      const admittedEntries: PendingEntry[] = [];
      for (let index = 0; index < count; index += 1) {
        const created = createEntry(networks);
        if ((await limits.admit(limit, created, pendingLimits)).admitted) admittedEntries.push(created);
      }
      return admittedEntries;
    };

    test('a newcomer replaces the oldest entry of the largest network', async () => {
      const [first, second] = await admitMany('A a x', 6);
      await admitMany('B b x', 4);
      const newcomer = createEntry('C c x');
      expect(await limits.admit(limit, newcomer, pendingLimits)).toEqual({
        admitted: true,
        evicted: first?.id,
      });
      // With five, four and one entries, neither of the two largest networks is admitted.
      expect(await limits.admit(limit, createEntry('A a x'), pendingLimits)).toEqual({ admitted: false });
      expect(await limits.admit(limit, createEntry('B b x'), pendingLimits)).toEqual({ admitted: false });
      expect(await limits.admit(limit, createEntry('C c x'), pendingLimits)).toEqual({
        admitted: true,
        evicted: second?.id,
      });
    });

    test('networks are compared from wide to narrow, with the newcomer’s own network last', async () => {
      // A has six entries in three small networks, B four in one.
      await admitMany('A a x', 1);
      const [oldest] = await admitMany('A a y', 4);
      await admitMany('A b z', 1);
      await admitMany('B b x', 4);
      expect(await limits.admit(limit, createEntry('C c c'), pendingLimits)).toEqual({
        admitted: true,
        evicted: oldest?.id,
      });
      expect(await limits.admit(limit, createEntry('A a x'), pendingLimits)).toMatchObject({
        admitted: true,
      });
      expect(await limits.admit(limit, createEntry('A a y'), pendingLimits)).toEqual({ admitted: false });
    });

    test('networks with a single entry are not evicted', async () => {
      for (let index = 0; index < 10; index += 1) await admitMany(`N${index} a x`, 1);
      expect(await limits.admit(limit, createEntry('M a x'), pendingLimits)).toEqual({ admitted: false });
    });

    test('the narrowest network has its own limit', async () => {
      const narrow = { ...pendingLimits, perNetwork: 2 };
      const outcomes = [];
      for (const networks of ['A a x', 'A a x', 'A a x', 'A a y'])
        outcomes.push((await limits.admit(limit, createEntry(networks), narrow)).admitted);
      expect(outcomes).toEqual([true, true, false, true]);
    });

    test('entries that end or expire free their slots', async () => {
      const [first] = await admitMany('A a x', 10);
      expect(await admitMany('A a x', 1)).toEqual([]);
      if (first !== undefined) await limits.release(limit, first);
      if (first !== undefined) await limits.release(limit, first);
      expect(await admitMany('A a x', 2)).toHaveLength(1);
      await limits.release(limit, createEntry('Z z z'));
      now += 299;
      expect(await admitMany('A a x', 1)).toEqual([]);
      now += 2;
      expect(await admitMany('A a x', 12)).toHaveLength(10);
      expect((await limits.admit(`${limit} beside it`, createEntry('A a x'), pendingLimits)).admitted).toBe(true);
    });

    test('there are never more pending entries than allowed, and no small network is evicted', async () => {
      const pending = new Map<string, string>();
      for (let index = 0; index < 150; index += 1) {
        const number = (index * 7919) % 31;
        const candidate = createEntry(number < 20 ? `A a${number % 2} x${number % 5}` : `B${number} b x`);
        const { admitted, evicted } = await limits.admit(limit, candidate, pendingLimits);
        if (evicted !== undefined) {
          expect(pending.delete(evicted)).toBe(true);
        }
        if (admitted) pending.set(candidate.id, candidate.networks[0] ?? '');
        expect(pending.size).toBeLessThanOrEqual(10);
      }
      const sizes = Map.groupBy(pending.values(), (network) => network);
      const counts = [...sizes.values()].map(({ length }) => length);
      expect(Math.max(...counts) - Math.min(...counts)).toBeLessThanOrEqual(1);
    });
  });

  test('one process counts as the only user of its limits', async () => {
    expect((await openLimits(() => NOW)).processCount()).toBe(1);
  });
});
