import type { Epoch } from '../domain/epoch.ts';
import { boundedCache } from '../http/bounded-cache.ts';

/**
 * How often each device may ask. Kept in the process's memory: a poll writes nothing. The pace counts from the
 * last poll that was let through, so a device that asks too often is told to wait and is never pushed out.
 *
 * RFC 8628 §3.5: each `slow_down` makes the interval 5 seconds longer, for this and all later polls. A device that
 * obeys is always slower than that, because it counts from the poll that was turned down. For one that does not, the
 * growth has an end: it is let through once in `interval + MOST_ADDED` seconds, however fast it asks.
 */
export interface PollPace {
  /** 0 when it is time; otherwise the seconds still to wait. */
  early(requestId: string, interval: number, now: Epoch): number;
  /** A device request that was found waiting here; the store need not be asked. */
  isKnown(requestId: string): boolean;
  /** It was told to wait. */
  waits(requestId: string, now: Epoch): void;
  /** It was told to slow down. */
  slowed(requestId: string): void;
}

const STEP = 5;
const MOST_ADDED = 30;

interface Pace {
  readonly last: Epoch;
  readonly added: number;
}

export function pollPace(max = 100_000): PollPace {
  const paces = boundedCache<string, Pace>(max);
  return {
    early(requestId, interval, now) {
      const pace = paces.get(requestId);
      if (pace === undefined) return 0;
      const due = pace.last + interval + pace.added;
      // Half a second of grace: a device that keeps the interval exactly must not fail by jitter.
      return now >= due - 0.5 ? 0 : Math.max(1, Math.ceil(due - now));
    },
    isKnown: (requestId) => paces.has(requestId),
    waits: (requestId, now) =>
      void paces.set(requestId, { last: now, added: paces.get(requestId)?.added ?? 0 }),
    slowed(requestId) {
      const pace = paces.get(requestId);
      if (pace !== undefined)
        paces.set(requestId, { ...pace, added: Math.min(pace.added + STEP, MOST_ADDED) });
    },
  };
}
