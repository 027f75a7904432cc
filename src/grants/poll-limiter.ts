import type { Epoch } from '../domain/epoch.ts';
import { createBoundedCache } from '../lib/bounded-cache.ts';

const MAX_REQUESTS = 100_000;
const SLOW_DOWN_SECONDS = 5;
const MAX_SLOW_DOWN_SECONDS = 30;

interface PollState {
  readonly lastPollAt: Epoch;
  readonly slowDownSeconds: number;
}

/**
 * Limits how often a device may poll. In memory, so that a poll writes nothing. The interval starts at the last accepted
 * poll, so a device that polls too often is delayed but never locked out.
 *
 * RFC 8628 §3.5: each `slow_down` adds 5 seconds to the interval, for this and all later polls. The growth is limited:
 * a device that ignores it is still accepted once in `interval + MAX_SLOW_DOWN_SECONDS`.
 */
export function createPollLimiter() {
  const states = createBoundedCache<string, PollState>(MAX_REQUESTS);
  return {
    /** 0: the poll is accepted. */
    getWaitSeconds(requestId: string, interval: number, now: Epoch): number {
      const state = states.get(requestId);
      // A last poll in the future: the clock was set back, and the device must not wait until it catches up.
      if (state === undefined || now < state.lastPollAt) return 0;
      const due = state.lastPollAt + interval + state.slowDownSeconds;
      // Half a second of tolerance for jitter.
      return now >= due - 0.5 ? 0 : Math.max(1, Math.ceil(due - now));
    },
    /** Has this process seen the request pending? */
    isPolling: (requestId: string): boolean => states.has(requestId),
    /** The response was `authorization_pending`. */
    recordPoll(requestId: string, now: Epoch): void {
      const { slowDownSeconds = 0 } = states.get(requestId) ?? {};
      states.set(requestId, { lastPollAt: now, slowDownSeconds });
    },
    /** The response was `slow_down`. */
    slowDown(requestId: string): void {
      const state = states.get(requestId);
      if (state !== undefined)
        states.set(requestId, {
          ...state,
          slowDownSeconds: Math.min(state.slowDownSeconds + SLOW_DOWN_SECONDS, MAX_SLOW_DOWN_SECONDS),
        });
    },
  };
}

export type PollLimiter = ReturnType<typeof createPollLimiter>;
