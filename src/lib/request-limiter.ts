import { randomInt } from 'node:crypto';
import type { Epoch } from '../domain/grant.ts';
import type { Rate } from '../domain/route-limit.ts';

/** The requests of one key. */
export interface RequestBucket {
  /** Undefined if the bucket is shared by keys for which there was no space. */
  readonly key: string | undefined;
  /** When it will be full again, in seconds since the limiter was created. */
  fullAt: number;
  /** The same if only requests of this process had been taken. */
  ownFullAt: number;
  /** Requests that were not yet reported to the shared state, and those that are being reported. */
  unreported: number;
  reporting: number;
}

/** Reports requests to a state that several processes share. */
export interface RequestReporter {
  /** How many processes share the limit while the shared state is unreachable; otherwise 1. */
  readonly sharers: number;
  /** A request was taken from this bucket. */
  onTaken(limiter: RequestLimiter, bucket: RequestBucket): void;
}

/** How many buckets the limiters of a process may keep. */
export class BucketBudget {
  readonly #total: number;
  used = 0;

  constructor(total: number) {
    this.#total = total;
  }

  /** One limiter may hold three times as many as are left free: three quarters if it is alone. */
  hasSpaceFor(size: number): boolean {
    return size < FREE_FACTOR * (this.#total - this.used);
  }
}

const FREE_FACTOR = 3;
const OVERFLOW_BUCKETS = 1_024;
/** Buckets that are examined for each new one, so that full ones do not stay. */
const SWEEP_STEPS = 2;
const SWEEP_STEPS_WITHOUT_SPACE = 8;
/** Rounding errors of this part of a request refuse nothing. */
const TOLERANCE = 0.01;

/**
 * Limits the requests of each key by the generic cell rate algorithm: the only state of a key is when its bucket will be
 * full again. A full bucket is dropped; all others are kept, so that a flood of new keys resets no count.
 */
export class RequestLimiter {
  readonly rate: Rate;
  /** Requests that were counted in a bucket of several keys. */
  overflowed = 0;
  readonly #budget: BucketBudget;
  readonly #reporter: RequestReporter | undefined;
  /** Times are relative to this: doubles are more precise near zero. */
  readonly #origin: Epoch;
  /** Seconds in which an empty bucket becomes full. */
  readonly #fillTime: number;
  /** Seconds in which one request becomes available. */
  readonly #interval: number;
  readonly #buckets = new Map<string, RequestBucket>();
  readonly #overflow: RequestBucket[] = [];
  readonly #hashSeed = randomInt(2 ** 31);
  #sweep = this.#buckets.values();

  constructor(rate: Rate, budget: BucketBudget, now: Epoch, reporter?: RequestReporter) {
    this.rate = rate;
    this.#budget = budget;
    this.#reporter = reporter;
    this.#origin = now;
    this.#fillTime = rate.burst / rate.perSecond;
    this.#interval = 1 / rate.perSecond;
  }

  get size(): number {
    return this.#buckets.size;
  }

  find(key: string, now: Epoch): RequestBucket {
    return this.#buckets.get(key) ?? this.#add(key, now - this.#origin);
  }

  /** Seconds until a request may be taken; 0: now. */
  getWait(bucket: RequestBucket, now: Epoch): number {
    const time = now - this.#origin;
    const backlog = bucket.fullAt - time;
    if (backlog <= 0) return 0;
    const interval = this.#getInterval();
    const wait = backlog + interval - this.#fillTime;
    if (wait <= interval * TOLERANCE) return 0;
    // More than any debt: the clock was set back.
    if (backlog > 2 * this.#fillTime) bucket.fullAt = time + 2 * this.#fillTime;
    return Math.min(wait, this.#fillTime + interval);
  }

  take(bucket: RequestBucket, now: Epoch): void {
    const time = now - this.#origin;
    bucket.fullAt = Math.max(bucket.fullAt, time) + this.#getInterval();
    const reporter = this.#reporter;
    if (reporter === undefined || bucket.key === undefined) return;
    bucket.ownFullAt = Math.max(bucket.ownFullAt, time) + this.#interval;
    bucket.unreported += 1;
    reporter.onTaken(this, bucket);
  }

  /** Whole requests that may be taken now. */
  getRemaining(bucket: RequestBucket, now: Epoch): number {
    const backlog = Math.max(0, bucket.fullAt - (now - this.#origin));
    return Math.max(0, Math.floor((this.#fillTime - backlog) / this.#getInterval() + TOLERANCE));
  }

  /**
   * Applies the level that the shared state had after the last report. The shared state may have lost the count (a restart,
   * an eviction), so what this process itself has taken stays counted.
   */
  setLevel(bucket: RequestBucket, level: number, now: Epoch): void {
    const time = now - this.#origin;
    const missing = this.rate.burst - level + bucket.unreported;
    // Own requests never exceed a burst, unless the clock was set back.
    const ownFullAt = Math.min(bucket.ownFullAt, time + this.#fillTime);
    bucket.fullAt = Math.max(time + missing * this.#interval, ownFullAt);
    bucket.ownFullAt = ownFullAt;
  }

  /** Gives its buckets back to the budget. */
  clear(): void {
    this.#budget.used -= this.#buckets.size;
    this.#buckets.clear();
  }

  /** With the same fill time, a share of the burst and of the rate is a larger interval. */
  #getInterval(): number {
    return this.#reporter === undefined ? this.#interval : this.#interval * this.#reporter.sharers;
  }

  #add(key: string, time: number): RequestBucket {
    this.#dropFull(time, SWEEP_STEPS);
    if (!this.#budget.hasSpaceFor(this.#buckets.size)) {
      this.#dropFull(time, SWEEP_STEPS_WITHOUT_SPACE);
      if (!this.#budget.hasSpaceFor(this.#buckets.size)) return this.#getOverflowBucket(key, time);
    }
    const bucket = createBucket(key, time);
    this.#buckets.set(key, bucket);
    this.#budget.used += 1;
    return bucket;
  }

  #dropFull(time: number, steps: number): void {
    for (let step = 0; step < steps; step += 1) {
      const { value: bucket, done } = this.#sweep.next();
      if (done === true) {
        this.#sweep = this.#buckets.values();
        return;
      }
      if (bucket.fullAt > time || bucket.unreported > 0 || bucket.reporting > 0) continue;
      this.#buckets.delete(bucket.key ?? '');
      this.#budget.used -= 1;
    }
  }

  #getOverflowBucket(key: string, time: number): RequestBucket {
    this.overflowed += 1;
    const index = hashText(key, this.#hashSeed) % OVERFLOW_BUCKETS;
    return (this.#overflow[index] ??= createBucket(undefined, time));
  }
}

const createBucket = (key: string | undefined, time: number): RequestBucket => ({
  key,
  fullAt: time,
  ownFullAt: time,
  unreported: 0,
  reporting: 0,
});

/** FNV-1a with a secret start, so that a client cannot choose the bucket that it shares. */
function hashText(text: string, seed: number): number {
  let hash = seed;
  for (let at = 0; at < text.length; at += 1) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193);
  return (hash ^ (hash >>> 15)) >>> 0;
}
