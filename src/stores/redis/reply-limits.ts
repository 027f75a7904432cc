import dataHandlerModule from 'ioredis/built/DataHandler.js';
import decoderModule from 'ioredis/built/resp/decoder.js';

/** Beyond all that is read in one command: pages of thousands of entries. */
const MAX_ELEMENTS = 1_000_000;
const MAX_BYTES = 64 * 1_048_576;

const CR = 0x0d;
const LF = 0x0a;
const MINUS = 0x2d;
const ZERO = 0x30;
/** The types whose number says how many bytes follow: bulk string, bulk error, verbatim string. */
const WITH_LENGTH: ReadonlySet<number> = new Set([0x24, 0x21, 0x3d]);
/** Array, set and push; a map has twice as many elements. */
const WITH_ELEMENTS: ReadonlyMap<number, number> = new Map([
  [0x2a, 1],
  [0x7e, 1],
  [0x3e, 1],
  [0x25, 2],
]);

/** Follows the framing of replies (RESP2 and RESP3) and limits their size, since ioredis allocates whatever size a reply announces. */
export class ReplyLimiter {
  /** Bytes of a bulk string that follow. */
  #skip = 0;
  /** 0 between elements. */
  #type = 0;
  #number = 0;
  #isNegative = false;
  /** Elements that the current reply still has. */
  #pending = 1;
  #elements = 0;
  #bytes = 0;

  /** Throws an `Error` if a reply is too large. */
  push(chunk: Uint8Array): void {
    for (let at = 0; at < chunk.length; ) {
      if (this.#skip > 0) {
        const count = Math.min(this.#skip, chunk.length - at);
        this.#skip -= count;
        at += count;
        if (this.#skip === 0) this.#endElement(0);
      } else {
        this.#readByte(chunk[at] as number);
        at += 1;
      }
    }
  }

  #readByte(byte: number): void {
    this.#bytes += 1;
    if (this.#bytes > MAX_BYTES) throw createTooLargeError();
    if (this.#type === 0) {
      this.#type = byte;
      this.#number = 0;
      this.#isNegative = false;
    } else if (byte === LF) this.#endLine();
    else if (byte === MINUS) this.#isNegative = true;
    else if (byte !== CR) this.#number = this.#number * 10 + (byte - ZERO);
  }

  #endLine(): void {
    const elements = WITH_ELEMENTS.get(this.#type);
    const number = this.#isNegative ? 0 : this.#number;
    if (elements !== undefined) return this.#endElement(number * elements);
    if (!WITH_LENGTH.has(this.#type) || this.#isNegative) return this.#endElement(0);
    this.#bytes += number;
    // Not `>`: the number is NaN if a digit is none.
    if (!(this.#bytes <= MAX_BYTES)) throw createTooLargeError();
    this.#skip = number + 2;
  }

  #endElement(elements: number): void {
    this.#type = 0;
    this.#elements += elements;
    if (!(this.#elements <= MAX_ELEMENTS)) throw createTooLargeError();
    this.#pending += elements - 1;
    if (this.#pending > 0) return;
    this.#pending = 1;
    this.#elements = 0;
    this.#bytes = 0;
  }
}

const createTooLargeError = (): Error => new Error('a reply is too large');

interface Decoder {
  write(chunk: Uint8Array): void;
}
interface DataHandler {
  dispatch(handle: () => void): void;
  returnFatalError(error: unknown): void;
}
type Internals<Name extends string, T> = Readonly<Record<Name, { readonly prototype: Partial<T> }>>;

/**
 * Replies that ioredis cannot process close the connection, and it reconnects. By itself, ioredis 6.0.0 throws what it cannot
 * process outside any call, which ends the process, and allocates arrays of any announced length.
 */
export function limitReplies(): void {
  const decoder = (decoderModule as unknown as Internals<'Decoder', Decoder>).Decoder.prototype;
  const handler = (dataHandlerModule as unknown as Internals<'default', DataHandler>).default.prototype;
  const { write } = decoder;
  if (write === undefined || handler.dispatch === undefined || handler.returnFatalError === undefined)
    throw new Error('this version of ioredis does not support reply limits');
  if (write === limitedWrite) return;
  decodeUnlimited = write;
  decoder.write = limitedWrite;
  handler.dispatch = dispatchSafely;
}

let decodeUnlimited: Decoder['write'];
const limiters = new WeakMap<Decoder, ReplyLimiter>();

function limitedWrite(this: Decoder, chunk: Uint8Array): void {
  let limiter = limiters.get(this);
  if (limiter === undefined) limiters.set(this, (limiter = new ReplyLimiter()));
  limiter.push(chunk);
  decodeUnlimited.call(this, chunk);
}

function dispatchSafely(this: DataHandler, handle: () => void): void {
  try {
    handle();
  } catch (error) {
    this.returnFatalError(error);
  }
}
