import type { IncomingMessage } from 'node:http';
import type { UpstreamSocket } from './leg/upstream-socket.ts';
import { BodyFault } from './request-body.ts';

/** Whoever carries a request whose body is on its way. */
export interface BodyCarrier {
  /** Something of it was given to the upstream. */
  bodyMoved(): void;
  bodyFailed(fault: BodyFault): void;
}

/**
 * A request's body on its way to a bare connection: counted, held against the length its client named, framed anew.
 * Its trailers end here: nobody looked at them (RFC 9110 §6.5.1).
 */
export class SentBody {
  /** How many have come. */
  bytes = 0;
  isWhole = false;
  readonly #request: IncomingMessage;
  /** Undefined: it goes in chunks, and is as long as it is. */
  readonly #length: number | undefined;
  readonly #most: number;
  readonly #carrier: BodyCarrier;
  #socket: UpstreamSocket | undefined;
  #isListening = false;
  #isPaused = false;

  constructor(request: IncomingMessage, length: number | undefined, most: number, carrier: BodyCarrier) {
    this.#request = request;
    this.#length = length;
    this.#most = most;
    this.#carrier = carrier;
    // What came together with the head shall be there when its turn comes; over HTTP/2 somebody has to ask for it.
    request.read(0);
  }

  /** All that came was handed on: if nothing moves, it is the client. */
  get waitsForClient(): boolean {
    return !this.#isPaused && !this.#request.complete;
  }

  /** The field that tells how it is framed. */
  get framing(): string {
    return this.#length === undefined
      ? 'transfer-encoding: chunked\r\n'
      : `content-length: ${this.#length}\r\n`;
  }

  /** What is there already follows the head at once. True: the connection takes more. */
  begin(socket: UpstreamSocket): boolean {
    this.#socket = socket;
    const part = this.#request.read() as Buffer | null;
    const takesMore = part === null || this.#send(part);
    if (this.#length === undefined && this.#request.complete && this.#request.readableLength === 0)
      this.#endChunks();
    // It was read to its end, and has to hear that it has ended.
    if (this.isWhole) this.#request.resume();
    return takesMore;
  }

  /** The rest of it, as it comes and as the connection takes it. */
  flow(takesMore: boolean): void {
    if (this.isWhole || this.#socket === undefined) return;
    if (!this.#isListening) {
      this.#isListening = true;
      this.#request.on('data', this.#onData).on('end', this.#onEnd).on('close', this.#onClose);
    }
    this.#isPaused = !takesMore;
    if (takesMore) this.#request.resume();
    else this.#request.pause();
  }

  /** Nothing more is sent. */
  stop(): void {
    this.#socket = undefined;
    if (this.#isListening)
      this.#request.off('data', this.#onData).off('end', this.#onEnd).off('close', this.#onClose);
    if (this.#request.complete) this.#request.resume();
    else this.#request.pause();
  }

  readonly #onData = (part: Buffer): void => {
    if (this.#socket === undefined) return;
    const takesMore = this.#send(part);
    if (this.#socket === undefined) return;
    if (!takesMore && !this.isWhole) this.flow(false);
    this.#carrier.bodyMoved();
  };

  readonly #onEnd = (): void => {
    if (this.isWhole || this.#socket === undefined) return;
    // A stream of HTTP/2 that ends before its length.
    if (this.#length !== undefined) return this.#carrier.bodyFailed(new BodyFault('client_gone'));
    this.#endChunks();
    this.#carrier.bodyMoved();
  };

  readonly #onClose = (): void => {
    if (!this.isWhole && !this.#request.complete) this.#carrier.bodyFailed(new BodyFault('client_gone'));
  };

  #send(part: Buffer): boolean {
    const socket = this.#socket as UpstreamSocket;
    this.bytes += part.length;
    if (this.bytes > this.#most) {
      this.#carrier.bodyFailed(new BodyFault('too_large'));
      return false;
    }
    if (this.#length === undefined) return part.length === 0 || socket.writeChunk(part);
    if (this.bytes > this.#length) {
      this.#carrier.bodyFailed(new BodyFault('client_gone'));
      return false;
    }
    this.isWhole = this.bytes === this.#length;
    return socket.write(part, this.isWhole);
  }

  #endChunks(): void {
    if (this.#socket === undefined) return;
    this.isWhole = true;
    this.#socket.endChunks();
  }
}
