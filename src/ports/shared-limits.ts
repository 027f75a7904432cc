import type { Rate } from '../domain/route-limit.ts';

/**
 * Counters shared by all processes of a deployment: the workers of one machine, the replicas on one Redis. They expire.
 * Names are public: callers pass a keyed digest of a person or address. A store that is unavailable throws a `Fault`;
 * the caller then enforces its share of the limit locally.
 */
export interface SharedLimits {
  /**
   * Takes from a token bucket and returns its previous level. If the level was below `amount`, nothing is taken unless
   * `allowDebt` is set (for something that has already happened). A negative amount refunds, zero only reads.
   */
  take(bucket: string, rate: Rate, amount: number, allowDebt?: boolean): Promise<number>;
  /**
   * Counts events in a sliding window and returns the previous count; an amount that would exceed `max` is not counted.
   * A negative amount takes back, zero only reads.
   */
  count(name: string, window: CountWindow, amount: number): Promise<number>;
  /**
   * Admits or rejects a pending entry. At the limit, the network with the most entries loses its oldest one to an entry
   * from a network with fewer.
   */
  admit(limit: string, entry: PendingEntry, limits: PendingLimits): Promise<PendingOutcome>;
  /** Removes an entry before it expires. */
  release(limit: string, entry: PendingEntry): Promise<void>;
  /** Returns how many processes share the counters, as far as known, and at least one. */
  processCount(): number;
}

export interface CountWindow {
  /** Without it, there is no limit. */
  readonly max?: number;
  readonly seconds: number;
}

export interface PendingEntry {
  readonly id: string;
  /** The networks that contain the client address, from the widest to the narrowest. */
  readonly networks: readonly string[];
  /** Expiry by the caller's clock. Entries of one network are evicted in this order. */
  readonly expires: number;
}

export interface PendingLimits {
  readonly total: number;
  /** Limit for one narrowest network; only `total` applies when omitted. */
  readonly perNetwork?: number;
  /** Lifetime of an entry. */
  readonly seconds: number;
}

export interface PendingOutcome {
  readonly admitted: boolean;
  /** The id of the entry that was removed to make space. */
  readonly evicted?: string;
}

/** Resolution of `count`: events expire at the end of a slice, up to this much late. */
export const COUNT_SLICE_SECONDS = 30;
