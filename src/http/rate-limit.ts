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
}

export interface LocalRateLimit extends RateLimit {
  take(who: string): number;
  giveBack(who: string): void;
}

const NO_LIMIT: LocalRateLimit = { take: () => 0, peek: () => 0, giveBack: () => {} };

/** A token bucket for each name, with a bound on the names: strangers cannot make it grow. */
export function rateLimit(rate: Rate | undefined, now: () => number, names = 10_000): LocalRateLimit {
  if (rate === undefined) return NO_LIMIT;
  const buckets = localBuckets(now, names);
  return {
    take: (who) => waitFor(buckets.draw(who, rate, 1), rate),
    peek: (who) => waitFor(buckets.draw(who, rate, 0), rate),
    giveBack: (who) => void buckets.draw(who, rate, -1),
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
  return `${groupsOf(address).slice(0, 4).join(':')}::/64`;
}

/**
 * The networks of an address, from the widest to the narrowest: what one provider, one site and one caller usually
 * have. IPv4 /16, /24, /32; IPv6 /32, /48, /64.
 */
export function networksOf(address: string): readonly [wide: string, site: string, narrow: string] {
  const mapped = address.startsWith('::ffff:') ? address.slice(7) : address;
  if (mapped.includes(':')) {
    const groups = groupsOf(mapped);
    const of = (count: number): string => `${groups.slice(0, count).join(':')}::/${count * 16}`;
    return [of(2), of(3), of(4)];
  }
  const bytes = mapped.split('.');
  if (bytes.length !== 4) return [mapped, mapped, mapped];
  const of = (count: number): string => `${bytes.slice(0, count).join('.')}/${count * 8}`;
  return [of(2), of(3), mapped];
}

/** The eight groups of an IPv6 address. One network has one name, however a proxy in front spells it. */
function groupsOf(address: string): string[] {
  const [head = [], tail] = address.split('::').map((part) => part.split(':').filter(Boolean));
  const zeros = Math.max(0, 8 - head.length - (tail?.length ?? 0));
  const groups = tail === undefined ? head : [...head, ...Array<string>(zeros).fill('0'), ...tail];
  return groups.map((group) => group.toLowerCase().replace(/^0+(?=.)/, ''));
}
