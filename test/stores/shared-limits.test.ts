import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { PendingEntry, SharedLimits } from '../../src/ports/shared-limits.ts';
import {
  createRateLimitClient,
  handleRateLimitRequest,
  type RateLimitClient,
} from '../../src/server/workers/rate-limit-ipc.ts';
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

let stores = 0;
const kinds: readonly (readonly [string, (now: () => number) => Promise<SharedLimits>])[] = [
  ['memory', async (now) => createMemoryLimits({ now })],
  [
    'the supervisor of workers',
    async (now) => {
      const counted = createMemoryLimits({ now });
      const worker: RateLimitClient = createRateLimitClient(
        (ask) => void handleRateLimitRequest(counted, ask).then((found) => worker.onResponse(found)),
        1,
      );
      return worker;
    },
  ],
  [
    'Redis',
    async (clock) => {
      stores += 1;
      const store = await openRedisStore({
        url: server.url,
        authenticator: testAuthenticator(),
        prefix: `l${stores}`,
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

describe.each(kinds)('counts in %s', (_, open) => {
  let now = NOW;
  const rate = { burst: 3, perSecond: 0.5 };

  test('a bucket gives what it holds, fills up again, and never beyond its size', async () => {
    now = NOW;
    const limits = await open(() => now);
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

  test('what is owed is taken from an empty bucket too, up to once its size', async () => {
    now = NOW;
    const limits = await open(() => now);
    for (let attempt = 0; attempt < 20; attempt += 1) await limits.take('a', rate, 1, true);
    expect(await limits.take('a', rate, 0)).toBe(-3);
    now += 7;
    expect(await limits.take('a', rate, 1)).toBeCloseTo(0.5);
    now += 2;
    expect(await limits.take('a', rate, 1)).toBeGreaterThanOrEqual(1);
  });

  test('at the same moment no more is given than there is', async () => {
    now = NOW;
    const limits = await open(() => now);
    const levels = await Promise.all(Array.from({ length: 50 }, () => limits.take('a', rate, 1)));
    expect(levels.filter((level) => level >= 1)).toHaveLength(3);
    const counts = await Promise.all(
      Array.from({ length: 50 }, () => limits.count('a', { max: 7, seconds: 60 }, 1)),
    );
    expect(counts.filter((before) => before < 7)).toHaveLength(7);
  });

  test('a count lasts for its period, independent of others, and is taken back', async () => {
    now = NOW;
    const limits = await open(() => now);
    const look = () => limits.count('a', { seconds: 0 }, 0);
    await limits.count('a', { seconds: 60 }, 2);
    await limits.count('a', { seconds: 600 }, 3);
    expect(await look()).toBe(5);
    await limits.count('a', { seconds: 600 }, -1);
    expect(await look()).toBe(4);
    now += 59;
    expect(await look()).toBe(4);
    now += 32;
    expect(await look()).toBe(2);
    now += 600;
    expect(await look()).toBe(0);
    await limits.count('a', { seconds: 60 }, -5);
    expect(await look()).toBe(0);
    expect(await limits.count('a', { max: 1, seconds: 60 }, 1)).toBe(0);
  });

  describe('what is pending', () => {
    // One store for all tests, with a limit for each.
    let limits: SharedLimits;
    let closeLast: readonly (() => Promise<void>)[];
    let limit = '';
    let entries = 0;
    beforeAll(async () => {
      limits = await open(() => now);
      closeLast = cleanups.splice(0);
    });
    afterAll(async () => {
      for (const close of closeLast) await close();
    });
    beforeEach(() => {
      now = NOW;
      limit = `limit-${(entries += 1)}`;
    });
    /** `networks` such as `A a x`, from wide to narrow. */
    const entry = (networks: string): PendingEntry => ({
      id: `id-${(entries += 1)}`,
      networks: networks.split(' '),
      expires: now + 300 + entries,
    });
    const pendingLimits = { total: 10, seconds: 300 };
    /** Enters so many of one network, and returns those that were admitted. */
    const fill = async (networks: string, count: number): Promise<PendingEntry[]> => {
      const allowed: PendingEntry[] = [];
      for (let index = 0; index < count; index += 1) {
        const one = entry(networks);
        if ((await limits.admit(limit, one, pendingLimits)).admitted) allowed.push(one);
      }
      return allowed;
    };

    test('a newcomer replaces the oldest entry of the largest network', async () => {
      const [first, second] = await fill('A a x', 6);
      await fill('B b x', 4);
      const newcomer = entry('C c x');
      expect(await limits.admit(limit, newcomer, pendingLimits)).toEqual({
        admitted: true,
        displaced: first?.id,
      });
      // Five, four and one: the largest network gets no more, the next gives nothing back.
      expect(await limits.admit(limit, entry('A a x'), pendingLimits)).toEqual({ admitted: false });
      expect(await limits.admit(limit, entry('B b x'), pendingLimits)).toEqual({ admitted: false });
      expect(await limits.admit(limit, entry('C c x'), pendingLimits)).toEqual({
        admitted: true,
        displaced: second?.id,
      });
    });

    test('networks are compared from wide to narrow, and inside the newcomer’s own last', async () => {
      // A has six in three small networks, B three in one.
      await fill('A a x', 1);
      const [oldest] = await fill('A a y', 4);
      await fill('A b z', 1);
      await fill('B b x', 4);
      expect(await limits.admit(limit, entry('C c c'), pendingLimits)).toEqual({
        admitted: true,
        displaced: oldest?.id,
      });
      expect(await limits.admit(limit, entry('A a x'), pendingLimits)).toMatchObject({ admitted: true });
      expect(await limits.admit(limit, entry('A a y'), pendingLimits)).toEqual({ admitted: false });
    });

    test('networks with one entry each keep them', async () => {
      for (let index = 0; index < 10; index += 1) await fill(`N${index} a x`, 1);
      expect(await limits.admit(limit, entry('M a x'), pendingLimits)).toEqual({ admitted: false });
    });

    test('the narrowest network has a limit of its own', async () => {
      const narrow = { ...pendingLimits, perNetwork: 2 };
      const outcomes = [];
      for (const networks of ['A a x', 'A a x', 'A a x', 'A a y'])
        outcomes.push((await limits.admit(limit, entry(networks), narrow)).admitted);
      expect(outcomes).toEqual([true, true, false, true]);
    });

    test('entries that end or expire free their slots', async () => {
      const [one] = await fill('A a x', 10);
      expect(await fill('A a x', 1)).toEqual([]);
      if (one !== undefined) await limits.release(limit, one);
      if (one !== undefined) await limits.release(limit, one);
      expect(await fill('A a x', 2)).toHaveLength(1);
      await limits.release(limit, entry('Z z z'));
      now += 299;
      expect(await fill('A a x', 1)).toEqual([]);
      now += 2;
      expect(await fill('A a x', 12)).toHaveLength(10);
      expect((await limits.admit(`${limit} beside it`, entry('A a x'), pendingLimits)).admitted).toBe(true);
    });

    test('never more are pending than allowed, whatever comes, and no small network is displaced', async () => {
      const pending = new Map<string, string>();
      for (let index = 0; index < 150; index += 1) {
        const number = (index * 7919) % 31;
        const one = entry(number < 20 ? `A a${number % 2} x${number % 5}` : `B${number} b x`);
        const { admitted, displaced } = await limits.admit(limit, one, pendingLimits);
        if (displaced !== undefined) {
          expect(pending.delete(displaced)).toBe(true);
        }
        if (admitted) pending.set(one.id, one.networks[0] ?? '');
        expect(pending.size).toBeLessThanOrEqual(10);
      }
      const sizes = Map.groupBy(pending.values(), (network) => network);
      const counts = [...sizes.values()].map(({ length }) => length);
      expect(Math.max(...counts) - Math.min(...counts)).toBeLessThanOrEqual(1);
    });
  });

  test('one process counts as the only user of its limits', async () => {
    expect((await open(() => NOW)).processCount()).toBe(1);
  });
});
