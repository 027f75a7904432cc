/**
 * What was worked out for the last few hundred texts. Two shelves: when one is full, what stands on the other is forgotten,
 * so that nothing has to be kept in order. Texts that are longer than most are not kept at all: they may come from strangers.
 */
export class Recent<T> {
  readonly #size: number;
  readonly #longest: number;
  #shelf = new Map<string, T>();
  #older = new Map<string, T>();

  constructor(size: number, longest: number) {
    this.#size = size;
    this.#longest = longest;
  }

  get(text: string): T | undefined {
    const known = this.#shelf.get(text);
    if (known !== undefined) return known;
    const older = this.#older.get(text);
    if (older !== undefined) this.set(text, older);
    return older;
  }

  set(text: string, value: T): void {
    if (text.length > this.#longest) return;
    if (this.#shelf.size >= this.#size && !this.#shelf.has(text)) {
      this.#older = this.#shelf;
      this.#shelf = new Map();
    }
    this.#shelf.set(text, value);
  }
}
