import type { Epoch } from '../domain/epoch.ts';
import { boundedCache } from '../http/bounded-cache.ts';
import { type LocalBuckets, localBuckets } from '../http/rate-limit.ts';
import { COUNT_SLICE, type SharedLimits } from '../ports/shared-limits.ts';
import { type PendingNetworks, pendingNetworks } from './pending-networks.ts';

/** Counts in the memory of one process, for itself or for those that ask it. Bounded: the oldest names are forgotten. */
export function memoryLimits({
  now,
  sharers = () => 1,
  names = 50_000,
}: {
  readonly now: () => Epoch;
  readonly sharers?: () => number;
  readonly names?: number;
}): SharedLimits {
  const buckets: LocalBuckets = localBuckets(now, names);
  // One for each integration, and one for all: not bounded by `names`, since a limit in use must not be forgotten.
  const limits = new Map<string, PendingNetworks>();
  const windows = boundedCache<string, Map<number, number>>(names);
  return {
    draw: async (bucket, rate, amount, owed) => buckets.draw(bucket, rate, amount, owed),
    async count(name, { most = Number.POSITIVE_INFINITY, seconds }, amount) {
      const at = now();
      const counts = windows.get(name) ?? new Map<number, number>();
      let standing = 0;
      for (const [slice, count] of counts)
        if (slice * COUNT_SLICE <= at) counts.delete(slice);
        else standing += count;
      const before = Math.max(0, standing);
      if (amount === 0 || (amount > 0 && before + amount > most)) return before;
      const slice = Math.ceil((at + seconds) / COUNT_SLICE);
      counts.set(slice, (counts.get(slice) ?? 0) + Math.max(amount, -before));
      windows.set(name, counts);
      return before;
    },
    async admit(limit, entry, terms) {
      const at = now();
      const pending = limits.get(limit) ?? pendingNetworks();
      pending.sweep(at);
      const outcome = pending.admit(entry, terms, at);
      if (pending.isEmpty) limits.delete(limit);
      else limits.set(limit, pending);
      return outcome;
    },
    async release(limit, entry) {
      const pending = limits.get(limit);
      pending?.release(entry);
      if (pending?.isEmpty === true) limits.delete(limit);
    },
    sharers,
  };
}
