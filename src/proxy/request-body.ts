import type { IncomingMessage } from 'node:http';
import { Readable } from 'node:stream';
import type { BodyBuffer } from './client-pace.ts';

/** Why a body could not be sent on to its end. */
export class BodyFault extends Error {
  readonly kind: 'too_large' | 'client_gone' | 'client_too_slow' | 'upstream_too_slow' | 'no_memory';

  constructor(kind: BodyFault['kind']) {
    super(kind);
    this.kind = kind;
  }
}

const PART = 65_536;

/**
 * A request's body on its way to the upstream, counted. It stands between the two because whoever reads it
 * destroys it when the upstream fails, and the client's connection must outlive that: the client is owed an answer.
 */
export class RequestBody extends Readable {
  readonly #request: IncomingMessage;
  #left: number;
  /** How many have come. */
  bytes = 0;
  #length: number | undefined;
  #hasEnded = false;
  /** Until enough of it has arrived. */
  #buffer: BodyBuffer | undefined;
  /** The same after that, until the HTTP client has taken it. */
  #taken: BodyBuffer | undefined;
  #enough: (fault?: BodyFault) => void = () => {};
  #moved: (bytes: number) => void = () => {};

  constructor(request: IncomingMessage, maxBytes: number) {
    super({ highWaterMark: PART });
    this.#request = request;
    this.#left = maxBytes;
    // A fault is told to the reader, which may be gone already.
    this.on('error', () => {});
    request.on('data', this.#onData).on('end', this.#onEnd).on('close', this.#onClose);
    request.pause();
  }

  /** All of it has arrived. */
  get hasArrived(): boolean {
    return this.#hasEnded || this.bytes === this.#length;
  }

  /** Reads the beginning of it; `enough` is called once, when that may be forwarded or why it cannot be. */
  buffer(
    into: BodyBuffer | undefined,
    length: number | undefined,
    enough: (fault?: BodyFault) => void,
    moved: (bytes: number) => void,
  ): void {
    this.#buffer = into;
    this.#length = length;
    this.#enough = enough;
    this.#moved = moved;
    if (into === undefined) enough();
    else this.#request.resume();
  }

  /** What has arrived is enough. */
  endBuffering(fault?: BodyFault): void {
    if (this.#buffer === undefined) return;
    this.#request.pause();
    const bytes = this.#buffer.take();
    this.#taken = this.#buffer;
    this.#buffer = undefined;
    // In parts, as the connection takes them.
    if (fault === undefined)
      for (let at = 0; at < bytes.length; at += PART) this.push(bytes.subarray(at, at + PART));
    // The HTTP client frames a body that has ended by its length.
    if (fault === undefined && this.#hasEnded) this.push(null);
    this.#enough(fault);
  }

  /** All that came was handed on: if nothing moves, it is the client. */
  get waitsForClient(): boolean {
    return this.readableLength === 0 && !this.#request.complete;
  }

  override _read(): void {
    if (this.#buffer !== undefined) return;
    this.#freeTaken();
    this.#request.resume();
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    this.#detach();
    this.#buffer?.free();
    this.#buffer = undefined;
    this.#freeTaken();
    callback(error);
  }

  #freeTaken(): void {
    this.#taken?.free();
    this.#taken = undefined;
  }

  readonly #onData = (part: Buffer): void => {
    this.#left -= part.length;
    this.bytes += part.length;
    this.#moved(part.length);
    const fault = this.#left < 0 ? new BodyFault('too_large') : undefined;
    if (this.#buffer !== undefined) this.#addToBuffer(this.#buffer, part, fault);
    else if (fault !== undefined) this.destroy(fault);
    else if (!this.push(part)) this.#request.pause();
  };

  #addToBuffer(buffer: BodyBuffer, part: Buffer, fault: BodyFault | undefined): void {
    if (fault !== undefined) return this.endBuffering(fault);
    const state = buffer.add(part);
    if (state === 'full') this.endBuffering(new BodyFault('no_memory'));
    else if (state === 'enough' || this.bytes === this.#length) this.endBuffering();
  }

  // Trailers are not forwarded: nobody looked at them (RFC 9110 §6.5.1).
  readonly #onEnd = (): void => {
    this.#hasEnded = true;
    this.#detach();
    if (this.#buffer !== undefined) this.endBuffering();
    else this.push(null);
  };

  readonly #onClose = (): void => {
    if (this.#request.complete) return;
    const fault = new BodyFault('client_gone');
    if (this.#buffer === undefined) this.destroy(fault);
    else this.endBuffering(fault);
  };

  #detach(): void {
    this.#request.off('data', this.#onData).off('end', this.#onEnd).off('close', this.#onClose);
    if (!this.#request.complete) this.#request.pause();
  }
}
