import type { Http2Stream } from './stream.ts';

/**
 * The open streams of a connection, in the order of their ids, which only increase (RFC 9113 §5.1.1).
 *
 * It is not a Map, because streams that come and go in a Map stay in memory after they end: V8 replaces the table of the Map
 * again and again, and each replaced table keeps its entries and the next table until a full garbage collection.
 */
export class OpenStreams {
  readonly #streams: Http2Stream[] = [];

  get size(): number {
    return this.#streams.length;
  }

  get(id: number): Http2Stream | undefined {
    const stream = this.#streams[this.#findIndex(id)];
    return stream?.id === id ? stream : undefined;
  }

  /** The id must be greater than that of all streams before. */
  add(stream: Http2Stream): void {
    this.#streams.push(stream);
  }

  delete({ id }: Http2Stream): void {
    const streams = this.#streams;
    const index = this.#findIndex(id);
    if (streams[index]?.id !== id) return;
    for (let next = index + 1; next < streams.length; next += 1) streams[next - 1] = streams[next] as Http2Stream;
    streams.pop();
  }

  /** A copy: streams may end while it is read. */
  list(): readonly Http2Stream[] {
    return this.#streams.slice();
  }

  /** The index of the first stream with this id or a greater one. */
  #findIndex(id: number): number {
    let low = 0;
    let high = this.#streams.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if ((this.#streams[middle] as Http2Stream).id < id) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
