import type { IncomingMessage } from 'node:http';
import type { BodyBuffer } from './client-pace.ts';
import type { UpstreamSocket } from './leg/upstream-socket.ts';
import { BodyFault } from './request-body.ts';

const NOTHING = Buffer.alloc(0);

/** Whoever carries a request whose body is on its way. */
export interface BodyCarrier {
  /** Enough of it has arrived for a connection to be used. */
  bodyBuffered(): void;
  /** So many bytes have arrived, or were given to the upstream. */
  bodyMoved(bytes: number): void;
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
  /** Undefined: it is sent in chunks. */
  #length: number | undefined;
  readonly #most: number;
  readonly #carrier: BodyCarrier;
  #socket: UpstreamSocket | undefined;
  /** Until enough of it has arrived. */
  #buffer: BodyBuffer | undefined;
  /** The same after that, until the connection has taken it. */
  #taken: BodyBuffer | undefined;
  #hasEnded = false;
  #isListening = false;
  #isPaused = false;

  constructor(request: IncomingMessage, length: number | undefined, most: number, carrier: BodyCarrier) {
    this.#request = request;
    this.#length = length;
    this.#most = most;
    this.#carrier = carrier;
  }

  /** Its length is not known in advance: it may be a stream that is meant to be forwarded as it arrives. */
  get isUnmeasured(): boolean {
    return this.#length === undefined;
  }

  /** All of it has arrived. */
  get hasArrived(): boolean {
    return this.#hasEnded || this.bytes === this.#length;
  }

  /** Reads the beginning of it and calls `bodyBuffered` when that is enough. */
  buffer(into: BodyBuffer | undefined): void {
    if (into === undefined) return this.#carrier.bodyBuffered();
    this.#buffer = into;
    this.#listen();
    // Over HTTP/2, reading begins only when it is asked for.
    this.#request.resume();
  }

  /** What has arrived is enough. */
  endBuffering(): void {
    this.#request.pause();
    this.#isPaused = true;
    this.#carrier.bodyBuffered();
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
    const part = this.#buffer?.take();
    this.#taken = this.#buffer;
    this.#buffer = undefined;
    this.bytes -= part?.length ?? 0;
    const isEmpty = part === undefined || part.length === 0;
    const takesMore = isEmpty && this.#length !== 0 ? true : this.#send(part ?? NOTHING);
    if (takesMore) this.drained();
    // It was read to its end, and has to hear that it has ended.
    if (this.isWhole) this.#request.resume();
    return takesMore;
  }

  /** Nothing of it waits in the connection. */
  drained(): void {
    this.#taken?.free();
    this.#taken = undefined;
  }

  /** The rest of it, as it comes and as the connection takes it. */
  flow(takesMore: boolean): void {
    if (this.isWhole || this.#socket === undefined) return;
    this.#listen();
    this.#isPaused = !takesMore;
    if (takesMore) this.#request.resume();
    else this.#request.pause();
  }

  #listen(): void {
    if (this.#isListening) return;
    this.#isListening = true;
    this.#request.on('data', this.#onData).on('end', this.#onEnd).on('close', this.#onClose);
  }

  /** Nothing more is sent. */
  stop(): void {
    this.#socket = undefined;
    this.#buffer?.free();
    this.#buffer = undefined;
    this.drained();
    if (this.#isListening)
      this.#request.off('data', this.#onData).off('end', this.#onEnd).off('close', this.#onClose);
    if (this.#request.complete) this.#request.resume();
    else this.#request.pause();
  }

  readonly #onData = (part: Buffer): void => {
    if (this.#buffer !== undefined) return this.#addToBuffer(this.#buffer, part);
    if (this.#socket === undefined) return;
    const takesMore = this.#send(part);
    if (this.#socket === undefined) return;
    if (!takesMore && !this.isWhole) this.flow(false);
    this.#carrier.bodyMoved(part.length);
  };

  #addToBuffer(buffer: BodyBuffer, part: Buffer): void {
    this.bytes += part.length;
    if (this.bytes > this.#most) return this.#carrier.bodyFailed(new BodyFault('too_large'));
    if (this.#length !== undefined && this.bytes > this.#length)
      return this.#carrier.bodyFailed(new BodyFault('client_gone'));
    const state = buffer.add(part);
    if (state === 'full') return this.#carrier.bodyFailed(new BodyFault('no_memory'));
    if (state === 'enough' || this.bytes === this.#length) this.endBuffering();
    else this.#carrier.bodyMoved(part.length);
  }

  readonly #onEnd = (): void => {
    this.#hasEnded = true;
    if (this.isWhole) return;
    // A stream of HTTP/2 that ends before its length.
    if (this.#length !== undefined && this.bytes < this.#length)
      return this.#carrier.bodyFailed(new BodyFault('client_gone'));
    if (this.#buffer !== undefined) {
      // Upstreams understand a length, and not all of them understand chunks. A body that was received before it was read
      // ends although reading is paused, and its end is not reported again.
      this.#length ??= this.bytes;
      if (!this.#isPaused) this.endBuffering();
      return;
    }
    if (this.#socket === undefined) return;
    this.#endChunks();
    this.#carrier.bodyMoved(0);
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
