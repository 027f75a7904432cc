import type { Epoch } from '../domain/epoch.ts';
import { createBoundedCache } from '../lib/bounded-cache.ts';
import { createTokenBuckets } from '../lib/rate-limiter.ts';
import { COUNT_SLICE_SECONDS, type SharedLimits } from '../ports/shared-limits.ts';
import { createPendingNetworks, type PendingNetworks } from './pending-networks.ts';

const MAX_NAMES = 50_000;

/**
 * Counters in the memory of one process, for itself or its workers. The least recently used names are evicted; processes
 * with quotas keep the counts of their own requests.
 */
export function createMemoryLimits({
  now,
  processCount = () => 1,
}: {
  readonly now: () => Epoch;
  readonly processCount?: () => number;
}): SharedLimits {
  const buckets = createTokenBuckets(now, MAX_NAMES);
  /** One per client, and one for all: not bounded by `MAX_NAMES`, since a limit in use must not be evicted. */
  const pendingByLimit = new Map<string, PendingNetworks>();
  const windows = createBoundedCache<string, Map<number, number>>(MAX_NAMES);
  return {
    take: async (bucket, rate, amount, allowDebt) => buckets.consume(bucket, rate, amount, allowDebt),
    async count(name, { max = Number.POSITIVE_INFINITY, seconds }, amount) {
      const at = now();
      const counts = windows.get(name) ?? new Map<number, number>();
      let active = 0;
      for (const [slice, count] of counts)
        if (slice * COUNT_SLICE_SECONDS <= at) counts.delete(slice);
        else active += count;
      const before = Math.max(0, active);
      if (amount === 0 || (amount > 0 && before + amount > max)) return before;
      const slice = Math.ceil((at + seconds) / COUNT_SLICE_SECONDS);
      counts.set(slice, (counts.get(slice) ?? 0) + Math.max(amount, -before));
      windows.set(name, counts);
      return before;
    },
    async admit(limit, entry, limits) {
      const at = now();
      const pending = pendingByLimit.get(limit) ?? createPendingNetworks();
      pending.sweep(at);
      const outcome = pending.admit(entry, limits, at);
      if (pending.isEmpty) pendingByLimit.delete(limit);
      else pendingByLimit.set(limit, pending);
      return outcome;
    },
    async release(limit, entry) {
      const pending = pendingByLimit.get(limit);
      pending?.release(entry);
      if (pending?.isEmpty === true) pendingByLimit.delete(limit);
    },
    processCount,
  };
}
