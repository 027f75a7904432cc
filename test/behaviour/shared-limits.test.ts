import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import type { SharedLimits } from '../../src/ports/shared-limits.ts';
import { memoryLimits } from '../../src/stores/memory-limits.ts';
import { openRedis } from '../../src/stores/redis.ts';
import { anAuthenticator } from '../support/record-keys.ts';
import { type RedisServer, redisServer } from '../support/redis-server.ts';
import { NOW } from '../support/store-fixtures.ts';

let server: RedisServer;
beforeAll(async () => {
  server = await redisServer();
});
afterAll(() => server.stop());

const closing: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0)) await close();
});

let stores = 0;
const kinds: readonly (readonly [string, (now: () => number) => Promise<SharedLimits>])[] = [
  ['memory', async (now) => memoryLimits({ now })],
  [
    'Redis',
    async (clock) => {
      stores += 1;
      const store = await openRedis({
        url: server.url,
        authenticator: anAuthenticator(),
        prefix: `l${stores}`,
        maxStaleness: 60,
        ack: 'reachable',
        clock,
      });
      closing.push(() => store.close());
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
    expect([await limits.draw('a', rate, 1), await limits.draw('a', rate, 1)]).toEqual([3, 2]);
    expect([await limits.draw('a', rate, 1), await limits.draw('a', rate, 1)]).toEqual([1, 0]);
    expect(await limits.draw('a', rate, 0)).toBe(0);
    expect(await limits.draw('b', rate, 0)).toBe(3);
    now += 3;
    expect(await limits.draw('a', rate, 1)).toBeCloseTo(1.5);
    expect(await limits.draw('a', rate, 1)).toBeCloseTo(0.5);
    now += 600;
    expect(await limits.draw('a', rate, 0)).toBe(3);
    await limits.draw('a', rate, 1);
    expect(await limits.draw('a', rate, -1)).toBe(2);
    expect(await limits.draw('a', rate, -1)).toBe(3);
    expect(await limits.draw('a', rate, 0)).toBe(3);
  });

  test('what is owed is taken from an empty bucket too, up to once its size', async () => {
    now = NOW;
    const limits = await open(() => now);
    for (let turn = 0; turn < 20; turn += 1) await limits.draw('a', rate, 1, true);
    expect(await limits.draw('a', rate, 0)).toBe(-3);
    now += 7;
    expect(await limits.draw('a', rate, 1)).toBeCloseTo(0.5);
    now += 2;
    expect(await limits.draw('a', rate, 1)).toBeGreaterThanOrEqual(1);
  });

  test('at the same moment no more is given than there is', async () => {
    now = NOW;
    const limits = await open(() => now);
    const levels = await Promise.all(Array.from({ length: 50 }, () => limits.draw('a', rate, 1)));
    expect(levels.filter((level) => level >= 1)).toHaveLength(3);
    const counts = await Promise.all(
      Array.from({ length: 50 }, () => limits.count('a', { most: 7, seconds: 60 }, 1)),
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
    expect(await limits.count('a', { most: 1, seconds: 60 }, 1)).toBe(0);
  });

  test('one process counts as the only user of its limits', async () => {
    expect((await open(() => NOW)).sharers()).toBe(1);
  });
});
