import type { Rate } from '../domain/route-limit.ts';
import { createBoundedCache } from '../lib/bounded-cache.ts';
import { createRateLimiter, type MaybePromise, type RateLimiter } from '../lib/rate-limiter.ts';
import { Fault } from '../ports/fault.ts';
import type { SharedLimits } from '../ports/shared-limits.ts';

export const MAX_WRONG_CODES = 5;

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

export type AttemptLimits = ReturnType<typeof createAttemptLimits>;

/**
 * Counts of failed attempts. Created once per process, so that a reload does not reset them; bounded in size, and shared
 * with the other processes where a store supports it.
 */
export function createAttemptLimits(options: AttemptLimitsOptions) {
  const { now, shared, createLimit = (_, rate) => createRateLimiter(rate, now) } = options;
  const wrongCodeCounts = createBoundedCache<string, number>(20_000);
  const getLocalCount = (sessionId: string): number => wrongCodeCounts.get(sessionId) ?? 0;
  return {
    /** Wrong codes of a session. Counted here as well as in the cookie, which a client can replace by an older one. */
    getWrongCodes(sessionId: string): MaybePromise<number> {
      const localCount = getLocalCount(sessionId);
      if (shared === undefined || localCount >= MAX_WRONG_CODES) return localCount;
      return shared.limits
        .count(shared.keyFor(sessionId), { seconds: 0 }, 0)
        .then((sharedCount) => Math.max(localCount, sharedCount));
    },
    /** `seconds`: the remaining lifetime of the session. */
    addWrongCodes(sessionId: string, count: number, seconds: number): MaybePromise<void> {
      wrongCodeCounts.set(sessionId, getLocalCount(sessionId) + count);
      if (shared === undefined || count === 0) return;
      return shared.limits.count(shared.keyFor(sessionId), { seconds }, count).then(() => {});
    },
    /** Sign-in attempts by client address. */
    signInsByAddress: createLimit('signInsFrom', SIGN_IN_RATES.byAddress),
    /**
     * Wrong passwords by account, or by typed name if no account has it. Counted separately, so that invented names cannot
     * evict the counts of accounts.
     */
    failuresByAccount: createLimit('failuresAs', SIGN_IN_RATES.failuresByAccount),
    failuresByUnknownName: createLimit('failuresAsUnknown', SIGN_IN_RATES.failuresByAccount),
    /** By session. */
    codeMutex: createKeyedMutex({ maxQueued: 16, timeoutSeconds: 10 }),
    /** By device request, or by typed name. */
    signInMutex: createKeyedMutex({ maxQueued: 8, timeoutSeconds: 10 }),
  };
}

interface KeyedMutexLimits {
  /** Per key. */
  readonly maxQueued: number;
  readonly timeoutSeconds: number;
}

/**
 * Runs tasks with the same key one after another. Without it, concurrent guesses would all pass a limit that is checked
 * before and counted after each guess.
 */
export function createKeyedMutex({ maxQueued, timeoutSeconds }: KeyedMutexLimits) {
  const queues = new Map<string, { tail: Promise<unknown>; length: number }>();
  return {
    async runExclusive<T>(key: string, task: () => Promise<T>): Promise<T> {
      const queue = queues.get(key) ?? { tail: Promise.resolve(), length: 0 };
      if (queue.length >= maxQueued)
        throw new Fault('overloaded', 'too many requests are queued for one session or device request');
      queues.set(key, queue);
      queue.length += 1;
      const queuedAt = performance.now();
      const run = queue.tail.then(() => {
        if (performance.now() - queuedAt > timeoutSeconds * 1_000)
          throw new Fault('overloaded', 'timed out waiting for earlier requests of the same session or device request');
        return task();
      });
      queue.tail = run.catch(() => {});
      try {
        return await run;
      } finally {
        queue.length -= 1;
        if (queue.length === 0) queues.delete(key);
      }
    },
  };
}
