import { ChunkedBodyReader } from '../../http/chunk-reader.ts';
import type { RequestHead } from '../../http/request-head.ts';

type OnPart = (part: Buffer) => void;

/** Separates the body of a request from the bytes that follow it. */
export class BodyReader {
  /** All of the body has arrived, or no more of it is read. */
  isComplete = true;
  /** Bytes that are still to arrive; 0 for a chunked body. */
  left = 0;
  /** How many bytes of the last part belong to the body. */
  consumed = 0;
  #chunks: ChunkedBodyReader | undefined = undefined;

  start({ framing, contentLength = 0 }: RequestHead): void {
    const isChunked = framing === 'chunked';
    this.left = contentLength;
    this.#chunks = isChunked ? new ChunkedBodyReader(true) : undefined;
    this.isComplete = framing === 'none';
  }

  /** How many bytes are still to arrive, at least. */
  get missing(): number {
    return this.isComplete ? 0 : Math.max(1, this.left);
  }

  get trailers(): readonly string[] | undefined {
    return this.#chunks?.trailers;
  }

  stop(): void {
    this.isComplete = true;
    this.left = 0;
  }

  /** Finds the body in bytes that have arrived. False: it is malformed. */
  read(bytes: Buffer, onPart: OnPart): boolean {
    if (this.#chunks !== undefined) return this.#readChunks(this.#chunks, bytes, onPart);
    const length = Math.min(bytes.length, this.left);
    this.left -= length;
    this.consumed = length;
    this.isComplete = this.left === 0;
    if (length > 0) onPart(length === bytes.length ? bytes : bytes.subarray(0, length));
    return true;
  }

  #readChunks(chunks: ChunkedBodyReader, bytes: Buffer, onPart: OnPart): boolean {
    const state = chunks.read(bytes, 0, bytes.length, (part, from, end) => onPart(part.subarray(from, end)));
    this.consumed = chunks.offset;
    this.isComplete ||= state === 'complete';
    return state !== 'malformed';
  }
}
