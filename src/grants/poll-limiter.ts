import type { Epoch } from '../domain/epoch.ts';
import { createBoundedCache } from '../lib/bounded-cache.ts';

/**
 * Limits how often a device may poll. In memory, so that a poll writes nothing. The interval starts at the last accepted
 * poll, so a device that polls too often is delayed but never locked out.
 *
 * RFC 8628 §3.5: each `slow_down` adds 5 seconds to the interval, for this and all later polls. The growth is limited:
 * a device that ignores it is still accepted once in `interval + MAX_SLOW_DOWN_SECONDS`.
 */
export interface PollLimiter {
  /** 0: the poll is accepted. */
  getWaitSeconds(requestId: string, interval: number, now: Epoch): number;
  /** Has this process seen the request pending? */
  isPolling(requestId: string): boolean;
  /** The response was `authorization_pending`. */
  recordPoll(requestId: string, now: Epoch): void;
  /** The response was `slow_down`. */
  slowDown(requestId: string): void;
}

const SLOW_DOWN_SECONDS = 5;
const MAX_SLOW_DOWN_SECONDS = 30;

interface PollState {
  readonly lastPollAt: Epoch;
  readonly slowDownSeconds: number;
}

export function createPollLimiter(max = 100_000): PollLimiter {
  const states = createBoundedCache<string, PollState>(max);
  return {
    getWaitSeconds(requestId, interval, now) {
      const state = states.get(requestId);
      if (state === undefined) return 0;
      const due = state.lastPollAt + interval + state.slowDownSeconds;
      // Half a second of tolerance for jitter.
      return now >= due - 0.5 ? 0 : Math.max(1, Math.ceil(due - now));
    },
    isPolling: (requestId) => states.has(requestId),
    recordPoll: (requestId, now) =>
      void states.set(requestId, {
        lastPollAt: now,
        slowDownSeconds: states.get(requestId)?.slowDownSeconds ?? 0,
      }),
    slowDown(requestId) {
      const state = states.get(requestId);
      if (state !== undefined)
        states.set(requestId, {
          ...state,
          slowDownSeconds: Math.min(state.slowDownSeconds + SLOW_DOWN_SECONDS, MAX_SLOW_DOWN_SECONDS),
        });
    },
  };
}
