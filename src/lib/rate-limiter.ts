import type { Rate } from '../domain/route-limit.ts';
import { createBoundedCache } from './bounded-cache.ts';

/** Immediate if decided in memory, a promise if shared with other processes. */
export type MaybePromise<T> = T | Promise<T>;

export interface RateLimiter {
  /** 0 if allowed, otherwise the seconds to wait. */
  take(key: string): MaybePromise<number>;
  /** As `take`, by local knowledge only and without taking anything. */
  peek(key: string): number;
  refund(key: string): MaybePromise<void>;
}

interface LocalRateLimiter extends RateLimiter {
  take(key: string): number;
  refund(key: string): void;
}

const UNLIMITED: LocalRateLimiter = { take: () => 0, peek: () => 0, refund: () => {} };

/** A token bucket for each key, for a limited number of keys. */
export function createRateLimiter(rate: Rate | undefined, now: () => number, maxKeys = 10_000): LocalRateLimiter {
  if (rate === undefined) return UNLIMITED;
  const buckets = createTokenBuckets(now, maxKeys);
  return {
    take: (key) => computeRetryAfter(buckets.consume(key, rate, 1), rate),
    peek: (key) => computeRetryAfter(buckets.consume(key, rate, 0), rate),
    refund: (key) => void buckets.consume(key, rate, -1),
  };
}

/** Whole seconds until the bucket contains a token. */
export const computeRetryAfter = (level: number, { perSecond }: Rate): number =>
  level >= 1 ? 0 : Math.max(1, Math.ceil((1 - level) / perSecond));

interface Bucket {
  level: number;
  updatedAt: number;
}

export function createTokenBuckets(now: () => number, maxKeys: number) {
  const buckets = createBoundedCache<string, Bucket>(maxKeys);
  const refill = (bucket: Bucket, { burst, perSecond }: Rate): Bucket => {
    const time = now();
    bucket.level = Math.min(burst, bucket.level + Math.max(0, time - bucket.updatedAt) * perSecond);
    bucket.updatedAt = time;
    return bucket;
  };
  return {
    /** Returns the level before. Takes the amount only if there is enough, or debt is allowed. */
    consume(key: string, rate: Rate, amount: number, allowDebt = false): number {
      const bucket = refill(buckets.get(key) ?? { level: rate.burst, updatedAt: now() }, rate);
      const { level } = bucket;
      if (amount === 0) return level;
      bucket.level = computeLevel(level, rate, amount, allowDebt);
      buckets.set(key, bucket);
      return level;
    },
    level(key: string, rate: Rate): number | undefined {
      const bucket = buckets.get(key);
      return bucket && refill(bucket, rate).level;
    },
    set: (key: string, level: number) => void buckets.set(key, { level, updatedAt: now() }),
  };
}

/** Debt is limited to the size of the bucket, and so the longest wait to the time of filling it twice. */
export function computeLevel(level: number, { burst }: Rate, amount: number, allowDebt: boolean): number {
  if (amount > 0 && !allowDebt && level < amount) return level;
  return Math.max(-burst, Math.min(burst, level - amount));
}

/** IPv6 clients usually have a /64, so that is one key. */
export function getRateLimitKey(address: string): string {
  if (!address.includes(':') || address.startsWith('::ffff:')) return address;
  return `${expandIpv6Groups(address).slice(0, 4).join(':')}::/64`;
}

/** Typical networks of a provider, a site and a client: IPv4 /16, /24, /32; IPv6 /32, /48, /64. */
export function getNetworks(address: string): readonly [wide: string, site: string, narrow: string] {
  const unmapped = address.startsWith('::ffff:') ? address.slice(7) : address;
  if (unmapped.includes(':')) {
    const groups = expandIpv6Groups(unmapped);
    const prefix = (count: number): string => `${groups.slice(0, count).join(':')}::/${count * 16}`;
    return [prefix(2), prefix(3), prefix(4)];
  }
  const bytes = unmapped.split('.');
  if (bytes.length !== 4) return [unmapped, unmapped, unmapped];
  const prefix = (count: number): string => `${bytes.slice(0, count).join('.')}/${count * 8}`;
  return [prefix(2), prefix(3), unmapped];
}

/** The eight groups of an IPv6 address in canonical form. */
function expandIpv6Groups(address: string): string[] {
  const [head = [], tail] = address.split('::').map((part) => part.split(':').filter(Boolean));
  const zeros = Math.max(0, 8 - head.length - (tail?.length ?? 0));
  const groups = tail === undefined ? head : [...head, ...Array<string>(zeros).fill('0'), ...tail];
  return groups.map((group) => group.toLowerCase().replace(/^0+(?=.)/, ''));
}
