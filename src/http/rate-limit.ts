import { boundedCache } from './bounded-cache.ts';

export interface Rate {
  readonly burst: number;
  readonly perSecond: number;
}

/** At once from memory, or a moment later from what is shared with others. */
export type Soon<T> = T | Promise<T>;

/** How often somebody may do something. Off is a limiter that always says yes. */
export interface RateLimit {
  /** 0 when allowed; otherwise after how many seconds to try again. */
  take(who: string): Soon<number>;
  /** As `take`, but only by what is known here, and only a look: 0 may mean that somebody else must be asked. */
  peek(who: string): number;
  /** What was taken did not count after all. */
  giveBack(who: string): Soon<void>;
  /** Nothing has been taken of late: the whole allowance is there. */
  isFresh(who: string): Soon<boolean>;
}

export interface LocalRateLimit extends RateLimit {
  take(who: string): number;
  giveBack(who: string): void;
  isFresh(who: string): boolean;
}

const NO_LIMIT: LocalRateLimit = { take: () => 0, peek: () => 0, giveBack: () => {}, isFresh: () => true };

/** A token bucket for each name, with a bound on the names: strangers cannot make it grow. */
export function rateLimit(rate: Rate | undefined, now: () => number, names = 10_000): LocalRateLimit {
  if (rate === undefined) return NO_LIMIT;
  const buckets = localBuckets(now, names);
  return {
    take: (who) => waitFor(buckets.draw(who, rate, 1), rate),
    peek: (who) => waitFor(buckets.draw(who, rate, 0), rate),
    giveBack: (who) => void buckets.draw(who, rate, -1),
    isFresh: (who) => buckets.draw(who, rate, 0) >= rate.burst,
  };
}

/** After how many whole seconds a bucket with this level gives something. */
export const waitFor = (level: number, { perSecond }: Rate): number =>
  level >= 1 ? 0 : Math.max(1, Math.ceil((1 - level) / perSecond));

interface Bucket {
  level: number;
  at: number;
}

export interface LocalBuckets {
  /** What was in the bucket before; taken only if there was enough, unless it is owed. */
  draw(who: string, rate: Rate, amount: number, owed?: boolean): number;
  /** The level, when the bucket is known. */
  level(who: string, rate: Rate): number | undefined;
  set(who: string, level: number): void;
}

export function localBuckets(now: () => number, names: number): LocalBuckets {
  const buckets = boundedCache<string, Bucket>(names);
  const filled = (bucket: Bucket, { burst, perSecond }: Rate): Bucket => {
    const time = now();
    bucket.level = Math.min(burst, bucket.level + Math.max(0, time - bucket.at) * perSecond);
    bucket.at = time;
    return bucket;
  };
  return {
    draw(who, rate, amount, owed = false) {
      const bucket = filled(buckets.get(who) ?? { level: rate.burst, at: now() }, rate);
      const { level } = bucket;
      if (amount === 0) return level;
      bucket.level = levelAfter(level, rate, amount, owed);
      buckets.set(who, bucket);
      return level;
    },
    level(who, rate) {
      const bucket = buckets.get(who);
      return bucket && filled(bucket, rate).level;
    },
    set: (who, level) => void buckets.set(who, { level, at: now() }),
  };
}

/** Debts have an end, too: nobody is shut out for longer than it takes to fill a bucket twice. */
export function levelAfter(level: number, { burst }: Rate, amount: number, owed: boolean): number {
  if (amount > 0 && !owed && level < amount) return level;
  return Math.max(-burst, Math.min(burst, level - amount));
}

/** An address as the limiter counts it: an IPv6 caller owns a whole /64, not one address. */
export function limitName(address: string): string {
  if (!address.includes(':') || address.startsWith('::ffff:')) return address;
  const [head = [], tail] = address.split('::').map((part) => part.split(':').filter(Boolean));
  const zeros = Math.max(0, 8 - head.length - (tail?.length ?? 0));
  const groups = tail === undefined ? head : [...head, ...Array<string>(zeros).fill('0'), ...tail];
  // One network has one name, however a proxy in front spells it.
  return `${groups
    .slice(0, 4)
    .map((group) => group.toLowerCase().replace(/^0+(?=.)/, ''))
    .join(':')}::/64`;
}
