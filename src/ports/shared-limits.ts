/**
 * Counts that all processes of one gatehouse share: workers of one machine, replicas on one Redis. They forget by
 * themselves. Names tell nothing about whom they count: whoever counts a person or an address gives a keyed digest.
 * A store that cannot answer throws a `Fault`; the caller then keeps to its part of the allowance.
 */
export interface SharedLimits {
  /**
   * Takes from a bucket that fills up again. Answers what was in it before: below one nothing was taken, unless it was
   * `owed`, for something that has happened already. A negative amount puts back, zero only looks.
   */
  draw(bucket: string, rate: Allowance, amount: number, owed?: boolean): Promise<number>;
  /**
   * Counts something that stands for a time. Answers how many stood before: with `most` of them nothing was counted.
   * A negative amount takes back, zero only looks.
   */
  count(name: string, window: CountWindow, amount: number): Promise<number>;
  /**
   * Admits a pending entry under a limit of this name, or refuses it. At the limit, the network that has the most entries
   * loses one to a newcomer whose own network has fewer.
   */
  admit(limit: string, entry: PendingEntry, terms: PendingTerms): Promise<PendingOutcome>;
  /** An entry has ended before its time. */
  release(limit: string, entry: PendingEntry): Promise<void>;
  /** How many processes share the counts, as far as is known; at least one. */
  sharers(): number;
}

export interface Allowance {
  readonly burst: number;
  readonly perSecond: number;
}

export interface CountWindow {
  /** No limit when left out. */
  readonly most?: number;
  readonly seconds: number;
}

export interface PendingEntry {
  readonly id: string;
  /** The networks of the address that it came from, from the widest to the narrowest. */
  readonly networks: readonly string[];
  /** When it ends by the caller's clock. Entries of one network are displaced in this order. */
  readonly expires: number;
}

export interface PendingTerms {
  /** Most that may be pending under this limit. */
  readonly most: number;
  /** Most of one narrowest network; no limit of its own when omitted. */
  readonly perNetwork?: number;
  /** How long it is pending. */
  readonly seconds: number;
}

export interface PendingOutcome {
  readonly admitted: boolean;
  /** The id of the entry that was removed in its favour. */
  readonly displaced?: string;
}

/** Seconds. What is counted is kept by the slice of time in which it ends, and so stands for up to one slice longer. */
export const COUNT_SLICE = 30;
