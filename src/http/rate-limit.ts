import { LRUCache } from 'lru-cache';

export interface Rate {
  readonly burst: number;
  readonly perSecond: number;
}

/** How often somebody may do something. Off is a limiter that always says yes. */
export interface RateLimit {
  /** 0 when allowed; otherwise after how many seconds to try again. */
  take(who: string): number;
  /** As `take`, but only looks. */
  peek(who: string): number;
  /** Nothing has been taken of late: the whole allowance is there. */
  isFresh(who: string): boolean;
}

interface Bucket {
  level: number;
  at: number;
}

const NO_LIMIT: RateLimit = { take: () => 0, peek: () => 0, isFresh: () => true };

/** A token bucket for each name, with a bound on the names: strangers cannot make it grow. */
export function rateLimit(rate: Rate | undefined, now: () => number, names = 10_000): RateLimit {
  if (rate === undefined) return NO_LIMIT;
  const { burst, perSecond } = rate;
  const buckets = new LRUCache<string, Bucket>({ max: names });
  const filled = (who: string): Bucket => {
    const time = now();
    const bucket = buckets.get(who) ?? { level: burst, at: time };
    bucket.level = Math.min(burst, bucket.level + Math.max(0, time - bucket.at) * perSecond);
    bucket.at = time;
    return bucket;
  };
  const wait = (bucket: Bucket): number =>
    bucket.level >= 1 ? 0 : Math.max(1, Math.ceil((1 - bucket.level) / perSecond));
  return {
    peek: (who) => wait(filled(who)),
    isFresh: (who) => filled(who).level >= burst,
    take(who) {
      const bucket = filled(who);
      const seconds = wait(bucket);
      if (seconds === 0) bucket.level -= 1;
      buckets.set(who, bucket);
      return seconds;
    },
  };
}

/** An address as the limiter counts it: an IPv6 caller owns a whole /64, not one address. */
export function limitName(address: string): string {
  if (!address.includes(':') || address.startsWith('::ffff:')) return address;
  const [head = ''] = address.split('::');
  const groups = address.includes('::')
    ? [...head.split(':').filter(Boolean), '0', '0', '0', '0']
    : address.split(':');
  return `${groups.slice(0, 4).join(':')}::/64`;
}
