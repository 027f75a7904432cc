/**
 * A cache without order of use: when the current generation is full, it replaces the previous one. Long keys are not cached,
 * since clients may send them.
 */
export class TwoGenerationCache<T, K extends string | number = string> {
  readonly #maxEntries: number;
  readonly #maxKeyLength: number;
  #current = new Map<K, T>();
  #previous = new Map<K, T>();

  constructor(maxEntries: number, maxKeyLength = Number.POSITIVE_INFINITY) {
    this.#maxEntries = maxEntries;
    this.#maxKeyLength = maxKeyLength;
  }

  get(key: K): T | undefined {
    const value = this.#current.get(key);
    if (value !== undefined) return value;
    const promoted = this.#previous.get(key);
    if (promoted !== undefined) this.set(key, promoted);
    return promoted;
  }

  set(key: K, value: T): void {
    if (typeof key === 'string' && key.length > this.#maxKeyLength) return;
    if (this.#current.size >= this.#maxEntries && !this.#current.has(key)) {
      this.#previous = this.#current;
      this.#current = new Map();
    }
    this.#current.set(key, value);
  }
}
