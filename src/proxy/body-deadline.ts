/** How slowly a client may send a request body. Times in seconds. */
export interface BodyRateLimits {
  /** The longest pause. */
  readonly idle: number;
  /** For a whole request body. */
  readonly body: number;
  /** Bytes per second. */
  readonly minRate: number;
}

/**
 * The time by which more of a request body must arrive, by `performance.now()`. A client begins with `idle` seconds; each
 * byte adds the time it takes at `minRate`, up to `idle` seconds from now. A client may pause, but one that is always slower
 * than `minRate` times out.
 */
export class BodyDeadline {
  deadline = 0;
  #limits: BodyRateLimits | undefined;
  #latest = 0;

  start(limits: BodyRateLimits): void {
    const now = performance.now();
    this.#limits = limits;
    this.#latest = now + limits.body * 1_000;
    this.deadline = Math.min(now + limits.idle * 1_000, this.#latest);
  }

  extend(bytes: number): void {
    if (this.#limits === undefined) return;
    const { idle, minRate } = this.#limits;
    const extension = minRate > 0 ? (bytes / minRate) * 1_000 : Number.POSITIVE_INFINITY;
    this.deadline = Math.min(performance.now() + idle * 1_000, this.deadline + extension, this.#latest);
  }

  /** Until now the upstream took no more; that time does not count against the client. */
  restartIdle(): void {
    if (this.#limits === undefined) return;
    this.deadline = Math.min(performance.now() + this.#limits.idle * 1_000, this.#latest);
  }
}
