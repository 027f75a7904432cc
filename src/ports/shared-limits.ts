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

/** Seconds. What is counted is kept by the slice of time in which it ends, and so stands for up to one slice longer. */
export const COUNT_SLICE = 30;
