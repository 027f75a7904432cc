/** What has an id of RFC 9113 §5.1.1. */
interface Identified {
  readonly id: number;
}

/**
 * The open streams of a connection, in the order of their ids, which only increase (RFC 9113 §5.1.1).
 *
 * It is not a Map, because streams that come and go in a Map stay in memory after they end: V8 replaces the table of the Map
 * again and again, and each replaced table keeps its entries and the next table until a full garbage collection.
 */
export class OpenStreams<S extends Identified> {
  readonly #streams: S[] = [];

  get size(): number {
    return this.#streams.length;
  }

  get(id: number): S | undefined {
    const stream = this.#streams[this.#findIndex(id)];
    return stream?.id === id ? stream : undefined;
  }

  /** The id must be greater than that of all streams before. */
  add(stream: S): void {
    this.#streams.push(stream);
  }

  delete({ id }: S): void {
    const streams = this.#streams;
    const index = this.#findIndex(id);
    if (streams[index]?.id !== id) return;
    for (let next = index + 1; next < streams.length; next += 1) streams[next - 1] = streams[next] as S;
    streams.pop();
  }

  /** A copy: streams may end while it is read. */
  list(): readonly S[] {
    return this.#streams.slice();
  }

  /** The index of the first stream with this id or a greater one. */
  #findIndex(id: number): number {
    let low = 0;
    let high = this.#streams.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if ((this.#streams[middle] as S).id < id) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
