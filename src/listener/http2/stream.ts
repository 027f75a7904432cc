import { ByteQueue } from '../../http2/byte-queue.ts';
import type { HeaderBlock } from '../../http2/frame-writer.ts';
import { DEFAULT_WINDOW, ErrorCode, Flag, MAX_FRAME_SIZE } from '../../http2/protocol.ts';
import { createBufferPool } from '../../lib/buffer-pool.ts';
import type { DeadlineEntry } from '../../lib/deadlines.ts';
import type { Http2Connection } from './connection.ts';
import type { RequestFields } from './request-fields.ts';

/** Serves the request of a stream. */
export interface StreamHandler {
  /** A part of the request body. Its bytes are not used again. */
  onData(part: Buffer): void;
  /** The request is complete. */
  onInputEnd(): void;
  /** Everything that was received at once has been processed. */
  onReadEnd(): void;
  /** Everything that was written has been sent, after `write` returned false. */
  onDrain(): void;
  /** The response is complete, and all of it has been sent. */
  onSent(): void;
  /** The client, an error or the end of the connection has ended the stream before that. */
  onClose(): void;
  /** A method of this handler threw. */
  onInternalError(error: unknown): void;
}

/** Smaller parts of a body are collected until everything that has arrived was processed. */
const MIN_DELIVERED_BYTES = 1_024;
/**
 * A client may send this much of a request body before the handler takes it. The first is for requests that wait for an
 * upstream connection, perhaps a hundred on each client connection; the second, for those whose body is being forwarded.
 */
const WAITING_WINDOW: number = DEFAULT_WINDOW;
const FORWARDING_WINDOW = 262_144;
/** More than is buffered for a request that waits. */
const FORWARDING_BYTES = 131_072;

/** Bytes of a response that a client must read within the time limit for stalled responses. */
const MIN_PROGRESS = 16_384;
/** A stream, and the objects that serve it. */
const STREAM_BYTES = 4_096;

const unsentBuffers = createBufferPool();

/** One request and its response (RFC 9113 §5). */
export class Http2Stream implements DeadlineEntry {
  /** While the client does not read the response. */
  deadline = Number.POSITIVE_INFINITY;
  previous: DeadlineEntry | undefined = undefined;
  next: DeadlineEntry | undefined = undefined;
  readonly id: number;
  readonly connection: Http2Connection;
  readonly fields: RequestFields;
  handler!: StreamHandler;
  /** The client has ended the request. */
  isInputEnded: boolean;
  /** Names and values. */
  requestTrailers: readonly string[] | undefined = undefined;
  /** The stream is closed in both directions. */
  isClosed = false;
  isOutputEnded = false;
  /** Bytes that may still be sent, as far as this stream is concerned; negative after the client has reduced it. */
  sendWindow: number;
  #maxReceiveWindow: number = WAITING_WINDOW;
  /** Bytes that the client may still send. */
  receiveWindow: number = WAITING_WINDOW;
  #takenBytes = 0;
  /** Bytes that were taken, and not added to the window again. */
  #unacknowledged = 0;
  #bodyBytes = 0;
  /** Received, and not taken by the handler. */
  readonly #received = new ByteQueue();
  #isPaused = true;
  #awaitsReadEnd = false;
  #isEndReported = false;
  /** Written, and not sent. */
  readonly #unsent = new ByteQueue(unsentBuffers);
  #endsAfterUnsent = false;
  /** Sent after everything else. */
  #trailers: HeaderBlock | undefined = undefined;
  /** Sent since the deadline was extended. */
  #progress = 0;
  /** Charged to the connection's account. */
  #heldBytes = 0;

  constructor(connection: Http2Connection, id: number, fields: RequestFields, isInputEnded: boolean) {
    this.connection = connection;
    this.id = id;
    this.fields = fields;
    this.isInputEnded = isInputEnded;
    this.#isEndReported = isInputEnded;
    this.sendWindow = connection.initialSendWindow;
    this.hold(STREAM_BYTES + fields.size);
  }

  /** Charges the client with memory that is released with the stream. A negative number is given back. */
  hold(bytes: number): void {
    this.#heldBytes += bytes;
    this.connection.account.add(bytes);
  }

  /** The request is authorized: the limits of its grant apply to it, not those of unknown clients. */
  markAuthorized(): void {
    this.connection.account.hasAuthorized = true;
    this.hold(-this.#heldBytes);
  }

  get hasHandler(): boolean {
    return (this.handler as StreamHandler | undefined) !== undefined;
  }

  /** All of the request was received and taken. */
  get isInputTaken(): boolean {
    return this.isInputEnded && this.#received.length === 0;
  }

  get unsentBytes(): number {
    return this.#unsent.length;
  }

  /** DATA has arrived. `size`: with its padding. Returns the error of the stream. */
  receive(part: Buffer, size: number, isLast: boolean): ErrorCode | undefined {
    const { contentLength } = this.fields;
    this.#bodyBytes += part.length;
    if (size > this.receiveWindow) return ErrorCode.flowControlError;
    // RFC 9113 §8.1.1.
    if (contentLength !== undefined && this.#bodyBytes > contentLength) return ErrorCode.protocolError;
    if (isLast && !this.endInput()) return ErrorCode.protocolError;
    this.receiveWindow -= size;
    if (size > part.length) this.#acknowledge(size - part.length);
    if (!this.#isPaused && this.#received.length === 0 && part.length >= MIN_DELIVERED_BYTES) {
      this.#acknowledge(part.length);
      this.handler.onData(part);
    } else this.#received.add(part);
    if (isLast) this.#deliver();
    else if (!this.#isPaused) this.awaitReadEnd();
    return undefined;
  }

  /** Notifies the handler when everything that has arrived was processed. */
  awaitReadEnd(): void {
    if (this.#awaitsReadEnd) return;
    this.#awaitsReadEnd = true;
    this.connection.addReadEndWaiter(this);
  }

  endRead(): void {
    this.#awaitsReadEnd = false;
    this.#deliver();
    if (!this.isClosed) this.handler.onReadEnd();
  }

  /** The request has ended. False: its body is shorter than declared. */
  endInput(): boolean {
    const { contentLength } = this.fields;
    if (contentLength !== undefined && this.#bodyBytes !== contentLength) return false;
    this.isInputEnded = true;
    return true;
  }

  receiveTrailers(fields: RequestFields): void {
    this.requestTrailers = fields.toRawHeaders();
    this.hold(fields.size);
    this.#deliver();
  }

  pause(): void {
    this.#isPaused = true;
  }

  resume(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    this.#deliver();
  }

  /** What was received so far, for a handler that is not called with it. */
  takeReceived(): Buffer | undefined {
    const { length } = this.#received;
    if (length === 0) return undefined;
    this.#acknowledge(length);
    return this.#received.take();
  }

  #deliver(): void {
    while (!this.#isPaused && this.#received.length > 0 && !this.isClosed) {
      const part = this.#received.first;
      this.#received.consume(part.length);
      this.#acknowledge(part.length);
      this.handler.onData(part);
    }
    if (!this.isInputTaken || this.#isPaused || this.#isEndReported || this.isClosed) return;
    this.#isEndReported = true;
    this.handler.onInputEnd();
  }

  /** RFC 9113 §6.9: only what the handler took is added to the window. */
  #acknowledge(size: number): void {
    const { contentLength } = this.fields;
    this.#takenBytes += size;
    this.#unacknowledged += size;
    const needsNoCredit = contentLength !== undefined && contentLength <= WAITING_WINDOW;
    if (this.isInputEnded || this.isClosed || needsNoCredit) return;
    if (this.#maxReceiveWindow < FORWARDING_WINDOW && this.#takenBytes >= FORWARDING_BYTES) {
      this.#unacknowledged += FORWARDING_WINDOW - this.#maxReceiveWindow;
      this.#maxReceiveWindow = FORWARDING_WINDOW;
    }
    if (this.#unacknowledged < this.#maxReceiveWindow / 2) return;
    this.connection.writer.windowUpdate(this.id, this.#unacknowledged);
    this.receiveWindow += this.#unacknowledged;
    this.#unacknowledged = 0;
  }

  /** An interim response, the response, or its trailers. */
  writeHeaders(block: HeaderBlock, isEnd: boolean): void {
    if (this.isClosed || this.isOutputEnded) return;
    this.connection.writeHeaders(this.id, isEnd, block);
    if (isEnd) this.#endOutput();
  }

  /**
   * Copies what it cannot send at once, unless the bytes do not change until they are sent. False: the client does not keep up.
   * `isLast`: the response ends with this.
   */
  write(bytes: Buffer, start: number, end: number, isLast: boolean, isUnchanging = false): boolean {
    if (this.isClosed || this.isOutputEnded) return true;
    const sentEnd =
      this.#unsent.length > 0 || this.connection.isBlocked ? start : this.#send(bytes, start, end, isLast);
    if (sentEnd === end) return true;
    if (isUnchanging) this.#unsent.add(bytes.subarray(sentEnd, end));
    else this.#unsent.append(bytes, sentEnd, end);
    this.#endsAfterUnsent ||= isLast;
    this.#wait();
    return false;
  }

  /** The response is complete. */
  end(trailers?: HeaderBlock): void {
    if (this.isClosed || this.isOutputEnded) return;
    if (this.#unsent.length > 0) {
      this.#trailers = trailers;
      if (trailers !== undefined) this.hold(trailers.maxSize);
      this.#endsAfterUnsent = true;
      return;
    }
    if (trailers !== undefined) return this.writeHeaders(trailers, true);
    this.connection.writer.endStream(this.id);
    this.#endOutput();
  }

  /** Sends DATA frames as far as the windows allow, and returns where that ends. */
  #send(bytes: Buffer, start: number, end: number, isLast: boolean): number {
    const { connection } = this;
    let at = start;
    while (at < end) {
      const size = Math.min(end - at, connection.sendWindow, this.sendWindow, MAX_FRAME_SIZE);
      if (size <= 0 || connection.isStalled) break;
      const isEnd = isLast && at + size === end;
      connection.writeData(this.id, isEnd ? Flag.endStream : 0, bytes, at, at + size);
      this.sendWindow -= size;
      at += size;
      if (isEnd) this.#endOutput();
    }
    return at;
  }

  /** Sends one frame of what is waiting. False: the windows allow nothing more now. */
  sendUnsent(): boolean {
    const part = this.#unsent.first;
    const end = Math.min(part.length, MAX_FRAME_SIZE);
    const isLast = this.#endsAfterUnsent && this.#trailers === undefined && end === this.#unsent.length;
    const sent = this.#send(part, 0, end, isLast);
    // It was the end of the response.
    if (this.isClosed) return true;
    if (sent === 0) return false;
    this.#unsent.consume(sent);
    if (this.#unsent.length > 0) {
      this.#countProgress(sent);
      return true;
    }
    if (this.#trailers !== undefined) {
      this.writeHeaders(this.#trailers, true);
      return true;
    }
    this.connection.deadlines.remove(this);
    this.handler.onDrain();
    return true;
  }

  /** Something is waiting, and its own window allows to send it. */
  get canSend(): boolean {
    return this.#unsent.length > 0 && this.sendWindow > 0;
  }

  /** A client cannot keep a response for any time by reading it byte by byte. */
  #countProgress(sent: number): void {
    this.#progress += sent;
    if (this.#progress < MIN_PROGRESS) return;
    this.#progress = 0;
    this.deadline = this.connection.getStallDeadline();
  }

  #wait(): void {
    if (this.deadline === Number.POSITIVE_INFINITY) {
      this.connection.deadlines.add(this);
      this.deadline = this.connection.getStallDeadline();
      this.#progress = 0;
    }
    this.connection.addBlocked(this);
  }

  #endOutput(): void {
    this.isOutputEnded = true;
    this.#close();
    this.handler.onSent();
  }

  /** Aborts the stream; the handler is not called any more. */
  reset(code: ErrorCode): void {
    if (this.isClosed) return;
    this.connection.writer.reset(this.id, code);
    this.#close();
  }

  /** The client, or an error of the connection, has ended it. */
  closeByPeer(): void {
    if (this.isClosed) return;
    this.#close();
    try {
      this.handler.onClose();
    } catch (error) {
      this.handler.onInternalError(error);
    }
  }

  #close(): void {
    this.isClosed = true;
    this.hold(-this.#heldBytes);
    this.connection.deadlines.remove(this);
    this.#unsent.clear();
    this.#received.clear();
    this.connection.removeStream(this);
  }

  /** The client has read nothing of the response for too long. */
  onTimeout(): void {
    this.connection.writer.reset(this.id, ErrorCode.cancel);
    this.closeByPeer();
  }

  onInternalError(error: unknown): void {
    this.handler.onInternalError(error);
  }
}
