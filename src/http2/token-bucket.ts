/** A token bucket. After a pause it may give twice its burst at once: what is left of it, and the refill. */
export class TokenBucket {
  readonly #burst: number;
  readonly #perSecond: number;
  #left: number;
  #refilledAt: number;

  constructor(burst: number, perSecond: number) {
    this.#burst = burst;
    this.#perSecond = perSecond;
    this.#left = burst;
    this.#refilledAt = performance.now();
  }

  /** False: there was nothing left. */
  take(): boolean {
    this.#left -= 1;
    if (this.#left >= 0) return true;
    // The clock is read only when the bucket seems empty.
    const now = performance.now();
    const refill = ((now - this.#refilledAt) / 1_000) * this.#perSecond;
    this.#left = Math.min(this.#burst, this.#left + refill);
    this.#refilledAt = now;
    return this.#left >= 0;
  }
}
