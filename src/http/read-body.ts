import type { BodySink, Downstream } from './downstream.ts';
import type { RequestHead } from './request-head.ts';

export type BodyReadResult =
  | { readonly kind: 'complete'; readonly bytes: Buffer }
  | { readonly kind: 'too_large' }
  | { readonly kind: 'timeout' }
  | { readonly kind: 'aborted' };

/** Reads a request body into memory, which is charged to the client. It stops when the body exceeds the size or the time. */
export function readBody(
  downstream: Downstream,
  { contentLength = 0 }: RequestHead,
  maxBytes: number,
  seconds: number,
): Promise<BodyReadResult> {
  if (contentLength > maxBytes) return Promise.resolve({ kind: 'too_large' });
  return new Promise((resolve) => {
    const collected = new CollectedBytes(maxBytes, (bytes) => downstream.hold(bytes));
    let isSettled = false;
    const finish = (result: BodyReadResult): void => {
      if (isSettled) return;
      isSettled = true;
      clearTimeout(timer);
      if (result.kind !== 'complete') downstream.pause();
      resolve(result);
    };
    const sink: BodySink = {
      push(part) {
        if (!isSettled && !collected.add(part)) finish({ kind: 'too_large' });
      },
      end: () => finish({ kind: 'complete', bytes: collected.bytes }),
      abort: () => finish({ kind: 'aborted' }),
    };
    const timer = setTimeout(() => finish({ kind: 'timeout' }), seconds * 1_000);
    const first = downstream.takeBody(sink);
    if (first !== undefined) sink.push(first);
    if (downstream.isComplete) sink.end();
    else if (downstream.isClosed) sink.abort();
    else downstream.resume();
  });
}

const MIN_CAPACITY = 1_024;

/** Bytes that arrive in parts. They are copied: a chunk of one byte would keep an object, and the read that it was a part of. */
class CollectedBytes {
  readonly #maxBytes: number;
  readonly #hold: (bytes: number) => void;
  #buffer: Buffer = Buffer.alloc(0);
  #length = 0;

  constructor(maxBytes: number, hold: (bytes: number) => void) {
    this.#maxBytes = maxBytes;
    this.#hold = hold;
  }

  get bytes(): Buffer {
    return this.#buffer.subarray(0, this.#length);
  }

  /** Returns false if there are too many. */
  add(part: Buffer): boolean {
    const length = this.#length + part.length;
    if (length > this.#maxBytes) return false;
    if (length > this.#buffer.length) this.#grow(length);
    part.copy(this.#buffer, this.#length);
    this.#length = length;
    return true;
  }

  #grow(length: number): void {
    const previous = this.#buffer;
    this.#buffer = Buffer.allocUnsafeSlow(
      Math.min(this.#maxBytes, Math.max(length, 2 * previous.length, MIN_CAPACITY)),
    );
    this.#hold(this.#buffer.length - previous.length);
    previous.copy(this.#buffer, 0, 0, this.#length);
  }
}
