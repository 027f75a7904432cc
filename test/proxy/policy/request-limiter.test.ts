import { describe, expect, test } from 'vitest';
import type { LimitKey, Rate, RouteLimit } from '../../../src/domain/route-limit.ts';
import { BucketBudget, RequestLimiter } from '../../../src/lib/request-limiter.ts';
import type { Caller } from '../../../src/proxy/policy/authorize.ts';
import { Quota } from '../../../src/proxy/policy/quotas.ts';
import { bearer, NOW } from '../../support/proxy-harness.ts';

const createLimiter = (rate: Rate, budget = new BucketBudget(1_000)): RequestLimiter =>
  new RequestLimiter(rate, budget, NOW);

/** Sends requests until one is refused, and returns how many were allowed. */
function drain(limiter: RequestLimiter, key: string, now: number, max = 100_000): number {
  for (let count = 0; count < max; count += 1) {
    const bucket = limiter.find(key, now);
    if (limiter.getWait(bucket, now) > 0) return count;
    limiter.take(bucket, now);
  }
  return max;
}

describe('one limit', () => {
  test.each([
    { burst: 1, perSecond: 1 / 3_600 },
    { burst: 3, perSecond: 0.5 },
    { burst: 100, perSecond: 100 },
    { burst: 200, perSecond: 100 },
    { burst: 7, perSecond: 1 / 60 },
    { burst: 50_000, perSecond: 100_000 },
  ])('allows its burst at once, refills at its rate, and never exceeds its burst: %o', (rate) => {
    const limiter = createLimiter(rate);
    expect(drain(limiter, 'a', NOW)).toBe(rate.burst);
    expect(drain(limiter, 'b', NOW)).toBe(rate.burst);
    const half = NOW + rate.burst / rate.perSecond / 2;
    expect(Math.abs(drain(limiter, 'a', half) - rate.burst / 2)).toBeLessThanOrEqual(1);
    expect(drain(limiter, 'b', NOW + 10 * 86_400)).toBe(rate.burst);
  });

  test('reports when the next request is allowed, and what remains', () => {
    const limiter = createLimiter({ burst: 3, perSecond: 0.5 });
    const bucket = limiter.find('a', NOW);
    expect(limiter.getRemaining(bucket, NOW)).toBe(3);
    for (let count = 2; count >= 0; count -= 1) {
      limiter.take(bucket, NOW);
      expect(limiter.getRemaining(bucket, NOW)).toBe(count);
    }
    expect(limiter.getWait(bucket, NOW)).toBeCloseTo(2);
    expect(limiter.getWait(bucket, NOW + 1.5)).toBeCloseTo(0.5);
    expect(limiter.getWait(bucket, NOW + 2)).toBe(0);
  });

  test('a clock that is set back refuses requests for at most the time in which two buckets fill', () => {
    const limiter = createLimiter({ burst: 10, perSecond: 1 });
    drain(limiter, 'a', NOW);
    const bucket = limiter.find('a', NOW - 86_400);
    expect(limiter.getWait(bucket, NOW - 86_400)).toBeLessThanOrEqual(20);
    expect(limiter.getWait(bucket, NOW - 86_400 + 20)).toBe(0);
  });
});

describe('a flood of keys', () => {
  const rate = { burst: 5, perSecond: 5 / 3_600 };

  test('uses no more memory than the budget, and resets no count', () => {
    const budget = new BucketBudget(1_000);
    const limiter = createLimiter(rate, budget);
    expect(drain(limiter, 'victim', NOW)).toBe(5);
    for (let index = 0; index < 50_000; index += 1) drain(limiter, `flood-${index}`, NOW, 1);
    expect(limiter.size).toBeLessThanOrEqual(750);
    expect(budget.used).toBe(limiter.size);
    expect(limiter.overflowed).toBeGreaterThan(0);
    expect(drain(limiter, 'victim', NOW)).toBe(0);
  });

  test('is itself limited: rotating more keys than fit gains no requests', () => {
    const limiter = createLimiter(rate, new BucketBudget(1_000));
    let allowed = 0;
    for (let round = 0; round < 10; round += 1)
      for (let index = 0; index < 10_000; index += 1) allowed += drain(limiter, `flood-${index}`, NOW, 1);
    // 750 buckets of their own, and 1,024 that keys share.
    expect(allowed).toBeLessThanOrEqual((750 + 1_024) * 5);
  });

  test('on one route leaves space for the callers of others', () => {
    const budget = new BucketBudget(1_000);
    const [flooded, other] = [createLimiter(rate, budget), createLimiter(rate, budget)];
    for (let index = 0; index < 10_000; index += 1) drain(flooded, `flood-${index}`, NOW, 1);
    for (let index = 0; index < 100; index += 1) expect(drain(other, `caller-${index}`, NOW)).toBe(5);
    expect(other.overflowed).toBe(0);
  });

  test('frees its memory once the buckets are full again', () => {
    const budget = new BucketBudget(1_000);
    const limiter = createLimiter(rate, budget);
    for (let index = 0; index < 10_000; index += 1) drain(limiter, `flood-${index}`, NOW, 1);
    const later = NOW + 3_600;
    for (let index = 0; index < 2_000; index += 1)
      drain(limiter, `caller-${index % 3}-${index}`, later + index * 720, 1);
    expect(limiter.size).toBeLessThan(20);
    limiter.clear();
    expect(budget.used).toBe(0);
  });
});

describe('the limits of a route', () => {
  const limit = (per: LimitKey, burst: number, name: string = per): RouteLimit => ({
    name,
    per,
    quota: burst,
    window: 3_600,
    rate: { burst, perSecond: burst / 3_600 },
  });
  const createQuota = (...limits: readonly RouteLimit[]): Quota => {
    const budget = new BucketBudget(1_000);
    return new Quota(
      limits.map((one) => ({ limit: one, limiter: createLimiter(one.rate, budget) })),
      false,
    );
  };
  const caller = (identity: string, clientId = 'app'): Caller => ({
    bearer: bearer({ identity, clientId }),
    scope: new Map(),
    lastSatisfiedRule: undefined,
    integration: undefined,
    identityValues: undefined,
  });
  const countAllowed = (quota: Quota, who: Caller | undefined, address = '192.0.2.1'): number => {
    for (let count = 0; ; count += 1) if (quota.take(who, address, NOW) !== undefined) return count;
  };

  test('a request takes from all of them or from none', () => {
    const quota = createQuota(limit('identity', 2), limit('route', 5));
    // A caller at its own limit keeps sending: that takes nothing from the route's.
    expect(countAllowed(quota, caller('a'))).toBe(2);
    for (let index = 0; index < 20; index += 1)
      expect(quota.take(caller('a'), '', NOW)).toMatchObject({ limit: 'identity' });
    expect(countAllowed(quota, caller('b'))).toBe(2);
    expect(countAllowed(quota, caller('c'))).toBe(1);
    // Beyond the route's limit, no caller loses its own quota.
    expect(quota.take(caller('d'), '', NOW)).toMatchObject({ limit: 'route' });
    expect(quota.take(caller('d'), '', NOW + 720)).toBeUndefined();
  });

  test('count by identity, client, address or route', () => {
    const identity = createQuota(limit('identity', 2));
    expect([countAllowed(identity, caller('a', 'x')), countAllowed(identity, caller('a', 'y'))]).toEqual([2, 0]);
    const client = createQuota(limit('client', 2));
    expect([countAllowed(client, caller('a', 'x')), countAllowed(client, caller('b', 'x'))]).toEqual([2, 0]);
    const address = createQuota(limit('address', 2));
    expect(countAllowed(address, caller('a'), '2001:db8::1')).toBe(2);
    expect(countAllowed(address, caller('b'), '2001:db8::2')).toBe(0);
    expect(countAllowed(address, caller('a'), '2001:db8:0:1::1')).toBe(2);
    const route = createQuota(limit('route', 2));
    expect([countAllowed(route, caller('a')), countAllowed(route, undefined)]).toEqual([2, 0]);
  });

  test('a request without a token counts by address, and takes nothing from an identity of that name', () => {
    const quota = createQuota(limit('identity', 2));
    const [address, key] = ['2001:db8::1', '2001:db8:0:0::/64'];
    expect(countAllowed(quota, undefined, address)).toBe(2);
    expect(countAllowed(quota, caller(key))).toBe(2);
  });

  test('the refusal names the limit with the longest wait, and the state of all', () => {
    const quota = createQuota(limit('identity', 1), limit('identity', 1, 'identity-2'), limit('route', 10));
    quota.take(caller('a'), '', NOW);
    expect(quota.take(caller('a'), '', NOW)).toEqual({
      reason: 'rate_limited',
      limit: 'identity',
      retryAfter: 3_600,
      policy: '"identity";q=1;w=3600, "identity-2";q=1;w=3600, "route";q=10;w=3600',
      state: '"identity";r=0;t=3600, "identity-2";r=0;t=3600, "route";r=9;t=1',
    });
  });
});
