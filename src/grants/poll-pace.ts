import { LRUCache } from 'lru-cache';
import type { Epoch } from '../domain/epoch.ts';

/**
 * How often each device may ask. Kept in the process's memory: a poll writes nothing. The pace counts from the
 * last poll that was let through, so a device that asks too often is told to wait and is never pushed out.
 */
export interface PollPace {
  /** 0 when it is time; otherwise the seconds still to wait. */
  early(requestId: string, interval: number, now: Epoch): number;
  /** It was told to wait. */
  waits(requestId: string, now: Epoch): void;
}

export function pollPace(max = 100_000): PollPace {
  const last = new LRUCache<string, Epoch>({ max });
  return {
    early(requestId, interval, now) {
      const before = last.get(requestId);
      // Half a second of grace: a device that keeps the interval exactly must not fail by jitter.
      if (before === undefined || now >= before + interval - 0.5) return 0;
      return Math.max(1, Math.ceil(before + interval - now));
    },
    waits: (requestId, now) => void last.set(requestId, now),
  };
}
