import type { Rate } from '../../domain/route-limit.ts';
import { computeLevel, computeRetryAfter, createTokenBuckets, type RateLimiter } from '../../lib/rate-limiter.ts';
import type { SharedLimits } from '../../ports/shared-limits.ts';

interface SharedRateLimitOptions {
  readonly shared: SharedLimits;
  /** Prefix of every bucket name. */
  readonly name: string;
  readonly rate: Rate;
  /**
   * Counts every request before it is allowed: for guesses. Otherwise a request with plenty of allowance left is allowed at
   * once and counted afterwards; what several processes allow in excess is deducted later.
   */
  readonly strict: boolean;
  readonly digestName: (text: string) => string;
  readonly now: () => number;
}

const MAX_NAMES = 10_000;
/** From this burst on, the first request of a new key is allowed without a round trip. */
const OPTIMISTIC_BURST = 50;

/**
 * One token bucket for all processes. An empty bucket rejects without a round trip; while the shared state is unreachable,
 * this process grants its share: the rate divided by the number of processes.
 */
export function createSharedRateLimit(options: SharedRateLimitOptions): RateLimiter {
  const { shared, name, rate, strict, now } = options;
  const digestKey = (key: string): string => options.digestName(`${name}\n${key}`);
  /** Upper bound of the shared level: the last reported one, refilled since. */
  const lastKnown = createTokenBuckets(now, MAX_NAMES);
  /** Local share. Always counted, so that an outage of the store grants no fresh allowance. */
  const localShare = createTokenBuckets(now, MAX_NAMES);
  const getLocalRate = (): Rate => {
    const sharers = Math.max(1, shared.processCount());
    return { burst: Math.max(1, rate.burst / sharers), perSecond: rate.perSecond / sharers };
  };
  let isUnreachable = false;

  const draw = async (key: string, amount: number, owed = false): Promise<number> => {
    try {
      const previousLevel = await shared.take(digestKey(key), rate, amount, owed);
      isUnreachable = false;
      lastKnown.set(key, computeLevel(previousLevel, rate, amount, owed));
      return previousLevel;
    } catch (error) {
      isUnreachable = true;
      throw error;
    }
  };
  return {
    take(key) {
      const level = lastKnown.level(key, rate);
      if (level !== undefined && level < 1 && !isUnreachable) return computeRetryAfter(level, rate);
      const available = level ?? (rate.burst >= OPTIMISTIC_BURST ? rate.burst : 0);
      if (!strict && !isUnreachable && available >= rate.burst / 2) {
        lastKnown.consume(key, rate, 1);
        localShare.consume(key, getLocalRate(), 1, true);
        draw(key, 1, true).catch(() => {});
        return 0;
      }
      return draw(key, 1).then(
        (previousLevel) => {
          if (previousLevel >= 1) localShare.consume(key, getLocalRate(), 1, true);
          return computeRetryAfter(previousLevel, rate);
        },
        () => computeRetryAfter(localShare.consume(key, getLocalRate(), 1), getLocalRate()),
      );
    },
    peek: (key) => (isUnreachable ? 0 : computeRetryAfter(lastKnown.level(key, rate) ?? rate.burst, rate)),
    async refund(key) {
      localShare.consume(key, getLocalRate(), -1);
      await draw(key, -1).catch(() => {});
    },
  };
}
