/** The last `capacity` values. */
export class RingBuffer<T> {
  readonly #values: T[] = [];
  readonly #capacity: number;
  #next = 0;

  constructor(capacity: number) {
    this.#capacity = capacity;
  }

  add(value: T): void {
    this.#values[this.#next] = value;
    this.#next = (this.#next + 1) % this.#capacity;
  }

  /** From the newest to the oldest. */
  *newestFirst(): Generator<T> {
    const { length } = this.#values;
    for (let age = 1; age <= length; age += 1) yield this.#values[(this.#next - age + length) % length] as T;
  }
}
