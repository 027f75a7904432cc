import type { IncomingMessage } from 'node:http';
import { Readable } from 'node:stream';

/** Why a body could not be sent on to its end. */
export class BodyFault extends Error {
  readonly kind: 'too_large' | 'client_gone' | 'client_too_slow' | 'upstream_too_slow';

  constructor(kind: BodyFault['kind']) {
    super(kind);
    this.kind = kind;
  }
}

/**
 * A request's body on its way to the upstream, counted. It stands between the two because whoever reads it
 * destroys it when the upstream fails, and the client's connection must outlive that: the client is owed an answer.
 */
export class RequestBody extends Readable {
  readonly #request: IncomingMessage;
  #left: number;
  /** How many have come. */
  bytes = 0;

  constructor(request: IncomingMessage, maxBytes: number) {
    super({ highWaterMark: 65_536 });
    this.#request = request;
    this.#left = maxBytes;
    // A fault is told to the reader, which may be gone already.
    this.on('error', () => {});
    request.on('data', this.#onData).on('end', this.#onEnd).on('close', this.#onClose);
    request.pause();
  }

  /** All that came was handed on: if nothing moves, it is the client. */
  get waitsForClient(): boolean {
    return this.readableLength === 0 && !this.#request.complete;
  }

  override _read(): void {
    this.#request.resume();
  }

  override _destroy(error: Error | null, callback: (error?: Error | null) => void): void {
    this.#detach();
    callback(error);
  }

  readonly #onData = (part: Buffer): void => {
    this.#left -= part.length;
    this.bytes += part.length;
    if (this.#left < 0) this.destroy(new BodyFault('too_large'));
    else if (!this.push(part)) this.#request.pause();
  };

  // Trailers are not forwarded: nobody looked at them (RFC 9110 §6.5.1).
  readonly #onEnd = (): void => {
    this.#detach();
    this.push(null);
  };

  readonly #onClose = (): void => {
    if (!this.#request.complete) this.destroy(new BodyFault('client_gone'));
  };

  #detach(): void {
    this.#request.off('data', this.#onData).off('end', this.#onEnd).off('close', this.#onClose);
    if (!this.#request.complete) this.#request.pause();
  }
}
