import type { BodySink, BodySource } from '../http/downstream.ts';
import type { BodyBuffer } from './body-buffering.ts';
import type { UpstreamStream } from './upstream/stream.ts';

/** Why a request body could not be forwarded completely. */
export class BodyError extends Error {
  readonly kind: 'too_large' | 'client_disconnected' | 'client_too_slow' | 'upstream_too_slow' | 'no_memory';

  constructor(kind: BodyError['kind']) {
    super(kind);
    this.kind = kind;
  }
}

export interface BodyConsumer {
  /** Enough of it has arrived for a connection to be used. */
  onBodyBuffered(): void;
  /** This many bytes have arrived, or were given to the upstream. */
  onBodyProgress(bytes: number): void;
  onBodyError(error: BodyError): void;
}

const NOTHING = Buffer.alloc(0);

/**
 * A request body that has not arrived completely: counted, compared with the length that its client declared, buffered until
 * a connection is used for it, and reframed. A body with trailers is sent in chunks, even if its length is known.
 */
export class RequestBody implements BodySink {
  /** Bytes that have arrived. */
  received = 0;
  /** All of it was given to the upstream. */
  isSent = false;
  readonly #source: BodySource;
  readonly #maxBytes: number;
  /** It is undefined if the body is sent in chunks. */
  #length: number | undefined;
  #consumer: BodyConsumer | undefined = undefined;
  #connection: UpstreamStream | undefined = undefined;
  /** Until enough of it has arrived. */
  #buffer: BodyBuffer | undefined = undefined;
  /** The same after that, until the connection has taken it. */
  #sentBuffer: BodyBuffer | undefined = undefined;
  /** What arrived together with the request head. */
  #first: Buffer = NOTHING;
  #hasEnded = false;
  #trailers: readonly string[] | undefined = undefined;
  #isPaused = false;

  constructor(source: BodySource, length: number | undefined, maxBytes: number) {
    this.#source = source;
    this.#length = length;
    this.#maxBytes = maxBytes;
  }

  /** What arrived together with the request head, before `start`. `isAll`: nothing follows. */
  setFirst(first: Buffer, isAll: boolean, trailers: readonly string[] | undefined): void {
    this.#first = first;
    if (isAll) this.#endInput(first.length, trailers);
  }

  /** Upstreams understand a length, and not all of them understand chunks. */
  #endInput(length: number, trailers: readonly string[] | undefined): void {
    this.#hasEnded = true;
    this.#trailers = trailers;
    if (trailers === undefined) this.#length ??= length;
  }

  get isLengthUnknown(): boolean {
    return this.#length === undefined;
  }

  /** All of it has arrived. */
  get isReceived(): boolean {
    return this.#hasEnded || this.received === this.#length;
  }

  /** Everything that arrived was forwarded: if nothing moves, it is the client. */
  get waitsForClient(): boolean {
    return !this.#isPaused && !this.#source.isComplete;
  }

  /** It has arrived, and there is nothing in it. */
  get isEmpty(): boolean {
    return this.#length === 0;
  }

  /** The header field that frames it. */
  get framing(): string {
    return this.#length === undefined ? 'transfer-encoding: chunked\r\n' : `content-length: ${this.#length}\r\n`;
  }

  /** Reads the beginning of it; `onBodyBuffered` is called when that is enough. */
  start(consumer: BodyConsumer, buffer: BodyBuffer | undefined): void {
    this.#consumer = consumer;
    if (buffer === undefined) {
      this.received = this.#first.length;
      return this.endBuffering();
    }
    this.#buffer = buffer;
    if (this.#first.length > 0) this.#addToBuffer(buffer, this.#first);
    if (this.#isPaused || this.#buffer === undefined) return;
    if (this.#hasEnded) this.endBuffering();
    else this.#source.resume();
  }

  /** What has arrived is enough. */
  endBuffering(): void {
    this.#pause();
    this.#consumer?.onBodyBuffered();
  }

  /** A part has arrived. */
  push(part: Buffer): void {
    if (this.#buffer !== undefined) return this.#addToBuffer(this.#buffer, part);
    if (this.#connection === undefined) return;
    const takesMore = this.#send(part);
    if (this.#connection === undefined) return;
    if (!takesMore && !this.isSent) this.flow(false);
    this.#consumer?.onBodyProgress(part.length);
  }

  /** No more of it arrives. */
  end(trailers?: readonly string[]): void {
    this.#hasEnded = true;
    if (this.isSent) return;
    // A stream of HTTP/2 that ends before its length.
    if (this.#length !== undefined && this.received < this.#length) return this.fail('client_disconnected');
    if (this.#connection === undefined) {
      this.#endInput(this.received, trailers);
      // A body that was received before it was read ends although reading is paused, and its end is not reported again.
      if (this.#buffer !== undefined && !this.#isPaused) this.endBuffering();
      return;
    }
    this.#trailers = trailers;
    this.#endChunks(this.#connection);
    this.#consumer?.onBodyProgress(0);
  }

  #endChunks(connection: UpstreamStream): void {
    this.isSent = true;
    connection.endChunks(this.#trailers);
  }

  abort(): void {
    if (!this.isReceived) this.fail('client_disconnected');
  }

  /** It cannot be forwarded completely. */
  fail(kind: BodyError['kind']): void {
    this.#consumer?.onBodyError(new BodyError(kind));
  }

  /** Sends what has arrived. True: the connection takes more. */
  begin(connection: UpstreamStream): boolean {
    this.#connection = connection;
    const part = this.#buffer === undefined ? this.#first : this.#buffer.take();
    this.#sentBuffer = this.#buffer;
    this.#buffer = undefined;
    this.#first = NOTHING;
    // They are counted again as they are sent.
    this.received -= part.length;
    const takesMore = part.length === 0 && this.#length !== 0 ? true : this.#send(part);
    if (takesMore) this.drained();
    // The body may have failed.
    if (this.#hasEnded && this.#length === undefined && this.#connection !== undefined) this.#endChunks(connection);
    // A message that was read to its end reports it only when it is resumed.
    if (this.isSent) this.#source.resume();
    return takesMore;
  }

  /** The connection has written everything. */
  drained(): void {
    this.#sentBuffer?.free();
    this.#sentBuffer = undefined;
  }

  /** Reads on, or waits until the connection takes more. */
  flow(takesMore: boolean): void {
    if (this.isSent || this.#connection === undefined) return;
    if (!takesMore) return this.#pause();
    this.#isPaused = false;
    this.#source.resume();
  }

  /** Nothing more is sent. */
  stop(): void {
    this.#connection = undefined;
    this.#consumer = undefined;
    this.#buffer?.free();
    this.#buffer = undefined;
    this.#first = NOTHING;
    this.drained();
    if (this.#source.isComplete) this.#source.resume();
    else this.#source.pause();
  }

  #pause(): void {
    this.#isPaused = true;
    this.#source.pause();
  }

  #addToBuffer(buffer: BodyBuffer, part: Buffer): void {
    this.received += part.length;
    if (this.received > this.#maxBytes) return this.fail('too_large');
    if (this.#length !== undefined && this.received > this.#length) return this.fail('client_disconnected');
    const state = buffer.add(part);
    if (state === 'full') return this.fail('no_memory');
    if (state === 'enough' || this.received === this.#length) this.endBuffering();
    else this.#consumer?.onBodyProgress(part.length);
  }

  #send(part: Buffer): boolean {
    const connection = this.#connection as UpstreamStream;
    this.received += part.length;
    if (this.received > this.#maxBytes) {
      this.fail('too_large');
      return false;
    }
    if (this.#length === undefined) return part.length === 0 || connection.writeChunk(part);
    if (this.received > this.#length) {
      this.fail('client_disconnected');
      return false;
    }
    this.isSent = this.received === this.#length;
    return connection.write(part, this.isSent);
  }
}
