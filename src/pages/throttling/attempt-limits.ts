import type { Rate } from '../../domain/rate.ts';
import { createBoundedCache } from '../../lib/bounded-cache.ts';
import { createRateLimiter, type MaybePromise, type RateLimiter } from '../../lib/rate-limiter.ts';
import type { SharedLimits } from '../../ports/shared-limits.ts';
import { createKeyedMutex, type KeyedMutex } from './keyed-mutex.ts';

export const MAX_WRONG_CODES = 5;

/**
 * Counts of failed attempts. Created once per process, so that a reload does not reset them; bounded in size, and shared
 * with the other processes where a store supports it.
 */
export interface AttemptLimits {
  /** Wrong codes of a session. Counted here as well as in the cookie, which a client can replace by an older one. */
  getWrongCodes(sessionId: string): MaybePromise<number>;
  /** `seconds`: the remaining lifetime of the session. */
  addWrongCodes(sessionId: string, count: number, seconds: number): MaybePromise<void>;
  /** Sign-in attempts by client address. */
  readonly signInsByAddress: RateLimiter;
  /**
   * Wrong passwords by account, or by typed name if no account has it. Counted separately, so that invented names cannot
   * evict the counts of accounts.
   */
  readonly failuresByAccount: RateLimiter;
  readonly failuresByUnknownName: RateLimiter;
  /** By session. */
  readonly codeMutex: KeyedMutex;
  /** By device request, or by typed name. */
  readonly signInMutex: KeyedMutex;
}

/** Accounts have a larger budget than an address, so that a single client cannot lock a user out. */
const SIGN_IN_RATES = {
  byAddress: { burst: 20, perSecond: 1 / 3 },
  failuresByAccount: { burst: 30, perSecond: 1 / 2 },
} as const;

type AttemptLimitName = 'signInsFrom' | 'failuresAs' | 'failuresAsUnknown';

interface AttemptLimitsOptions {
  readonly now: () => number;
  /** Default: limits of this process only. */
  readonly createLimit?: (name: AttemptLimitName, rate: Rate) => RateLimiter;
  /** Where the wrong codes of a session are counted for all processes, and the key. */
  readonly shared?: { readonly limits: SharedLimits; readonly keyFor: (sessionId: string) => string };
}

export function createAttemptLimits(options: AttemptLimitsOptions): AttemptLimits {
  const { now, shared, createLimit = (_, rate) => createRateLimiter(rate, now) } = options;
  const wrongCodeCounts = createBoundedCache<string, number>(20_000);
  const getLocalCount = (sessionId: string): number => wrongCodeCounts.get(sessionId) ?? 0;
  return {
    getWrongCodes(sessionId) {
      const localCount = getLocalCount(sessionId);
      if (shared === undefined || localCount >= MAX_WRONG_CODES) return localCount;
      return shared.limits
        .count(shared.keyFor(sessionId), { seconds: 0 }, 0)
        .then((sharedCount) => Math.max(localCount, sharedCount));
    },
    addWrongCodes(sessionId, count, seconds) {
      wrongCodeCounts.set(sessionId, getLocalCount(sessionId) + count);
      if (shared === undefined || count === 0) return;
      return shared.limits.count(shared.keyFor(sessionId), { seconds }, count).then(() => {});
    },
    signInsByAddress: createLimit('signInsFrom', SIGN_IN_RATES.byAddress),
    failuresByAccount: createLimit('failuresAs', SIGN_IN_RATES.failuresByAccount),
    failuresByUnknownName: createLimit('failuresAsUnknown', SIGN_IN_RATES.failuresByAccount),
    codeMutex: createKeyedMutex({ maxQueued: 16, timeoutSeconds: 10 }),
    signInMutex: createKeyedMutex({ maxQueued: 8, timeoutSeconds: 10 }),
  };
}
