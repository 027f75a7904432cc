import type { DeadlineEntry } from '../../lib/deadlines.ts';
import type { Http2Connection } from './connection.ts';
import type { HeaderBlock } from './frame-writer.ts';
import { DEFAULT_WINDOW, ErrorCode, Flag, MAX_FRAME_SIZE } from './protocol.ts';
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

const MIN_UNSENT_BUFFER = 4_096;
/**
 * Of a request body: as much as a client may send before the handler takes it. The first is for requests that wait for an
 * upstream connection, perhaps a hundred on each client connection; the second, for those whose body is being forwarded.
 */
const WAITING_WINDOW = DEFAULT_WINDOW;
const FORWARDING_WINDOW = 262_144;
/** More than is buffered for a request that waits. */
const FORWARDING_BYTES = 131_072;

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
  /** The stream is closed in both directions. */
  isClosed = false;
  isOutputEnded = false;
  /** Bytes that may still be sent, as far as this stream is concerned; negative after the client has reduced it. */
  sendWindow: number;
  #maxReceiveWindow: number = WAITING_WINDOW;
  #receiveWindow: number = WAITING_WINDOW;
  #takenBytes = 0;
  /** Bytes that were taken, and not added to the window again. */
  #unacknowledged = 0;
  #bodyBytes = 0;
  /** Received, and not taken by the handler. */
  #received: Buffer[] = [];
  #receivedBytes = 0;
  #isPaused = true;
  #isEndReported = false;
  /** Written, and not sent: from `#unsentStart` in the first to `#unsentEnd` in the last. */
  #unsent: Buffer[] = [];
  #unsentStart = 0;
  #unsentEnd = 0;
  #unsentBytes = 0;
  #endsAfterUnsent = false;

  constructor(connection: Http2Connection, id: number, fields: RequestFields, isInputEnded: boolean) {
    this.connection = connection;
    this.id = id;
    this.fields = fields;
    this.isInputEnded = isInputEnded;
    this.#isEndReported = isInputEnded;
    this.sendWindow = connection.initialSendWindow;
  }

  /** All of the request was received and taken. */
  get isInputTaken(): boolean {
    return this.isInputEnded && this.#receivedBytes === 0;
  }

  /** Bytes of the request that were not taken. */
  get receivedBytes(): number {
    return this.#receivedBytes;
  }

  get unsentBytes(): number {
    return this.#unsentBytes;
  }

  /** DATA has arrived. `size`: with its padding. Returns the error of the stream. */
  receive(part: Buffer, size: number, isLast: boolean): ErrorCode | undefined {
    const { contentLength } = this.fields;
    this.#bodyBytes += part.length;
    if (size > this.#receiveWindow) return ErrorCode.flowControlError;
    // RFC 9113 §8.1.1.
    if (contentLength !== undefined && this.#bodyBytes > contentLength) return ErrorCode.protocolError;
    if (isLast && !this.endInput()) return ErrorCode.protocolError;
    this.#receiveWindow -= size;
    if (size > part.length) this.#acknowledge(size - part.length);
    if (part.length === 0) this.#deliver();
    else if (this.#isPaused || this.#receivedBytes > 0) {
      this.#received.push(part);
      this.#receivedBytes += part.length;
    } else {
      this.#acknowledge(part.length);
      this.handler.onData(part);
      this.#deliver();
    }
    return undefined;
  }

  /** The request has ended. False: its body is shorter than declared. */
  endInput(): boolean {
    const { contentLength } = this.fields;
    if (contentLength !== undefined && this.#bodyBytes !== contentLength) return false;
    this.isInputEnded = true;
    return true;
  }

  /** Trailers were received; their fields are not used. */
  receiveTrailers(): void {
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
    if (this.#receivedBytes === 0) return undefined;
    const parts = this.#received;
    this.#acknowledge(this.#receivedBytes);
    this.#received = [];
    this.#receivedBytes = 0;
    return parts.length === 1 ? parts[0] : Buffer.concat(parts);
  }

  #deliver(): void {
    while (!this.#isPaused && this.#receivedBytes > 0 && !this.isClosed) {
      const part = this.#received.shift() as Buffer;
      this.#receivedBytes -= part.length;
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
    this.#receiveWindow += this.#unacknowledged;
    this.#unacknowledged = 0;
  }

  /** An interim response, the response, or its trailers. */
  writeHeaders(block: HeaderBlock, isEnd: boolean): void {
    if (this.isClosed || this.isOutputEnded) return;
    this.connection.writeHeaders(this.id, isEnd, block);
    if (isEnd) this.#endOutput();
  }

  /** Copies what it cannot send at once. False: the client does not keep up. `isLast`: the response ends with this. */
  write(bytes: Buffer, start: number, end: number, isLast: boolean): boolean {
    if (this.isClosed || this.isOutputEnded) return true;
    const sentEnd =
      this.#unsentBytes > 0 || this.connection.isBlocked ? start : this.#send(bytes, start, end, isLast);
    if (sentEnd === end) return true;
    this.#append(bytes, sentEnd, end);
    this.#endsAfterUnsent ||= isLast;
    this.#wait();
    return false;
  }

  /** Small parts are collected, so that they are sent in one frame later. */
  #append(bytes: Buffer, start: number, end: number): void {
    const size = end - start;
    let last = this.#unsent.at(-1);
    if (last === undefined || last.length - this.#unsentEnd < size) {
      this.#trimLast();
      last = Buffer.allocUnsafe(Math.max(size, MIN_UNSENT_BUFFER));
      this.#unsent.push(last);
      this.#unsentEnd = 0;
    }
    bytes.copy(last, this.#unsentEnd, start, end);
    this.#unsentEnd += size;
    this.#unsentBytes += size;
  }

  #trimLast(): void {
    const at = this.#unsent.length - 1;
    const last = this.#unsent[at];
    if (last !== undefined) this.#unsent[at] = last.subarray(0, this.#unsentEnd);
  }

  /** The response is complete. */
  end(): void {
    if (this.isClosed || this.isOutputEnded) return;
    if (this.#unsentBytes > 0) {
      this.#endsAfterUnsent = true;
      return;
    }
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
    const part = this.#unsent[0];
    if (part === undefined) return false;
    const isLastPart = this.#unsent.length === 1;
    const partEnd = isLastPart ? this.#unsentEnd : part.length;
    const end = Math.min(partEnd, this.#unsentStart + MAX_FRAME_SIZE);
    const isLast = this.#endsAfterUnsent && isLastPart && end === partEnd;
    const sent = this.#send(part, this.#unsentStart, end, isLast) - this.#unsentStart;
    // It was the end of the response.
    if (this.isClosed) return true;
    if (sent === 0) return false;
    this.#unsentBytes -= sent;
    this.#unsentStart += sent;
    if (this.#unsentStart === partEnd) {
      this.#unsent.shift();
      this.#unsentStart = 0;
    }
    if (this.#unsentBytes > 0) {
      this.deadline = this.connection.getStallDeadline();
      return true;
    }
    this.connection.deadlines.remove(this);
    this.handler.onDrain();
    return true;
  }

  /** Something is waiting, and its own window allows to send it. */
  get canSend(): boolean {
    return this.#unsentBytes > 0 && this.sendWindow > 0;
  }

  #wait(): void {
    if (this.deadline === Number.POSITIVE_INFINITY) {
      this.connection.deadlines.add(this);
      this.deadline = this.connection.getStallDeadline();
    }
    this.connection.addBlocked(this);
  }

  #endOutput(): void {
    this.isOutputEnded = true;
    // RFC 9113 §8.1: the client need not send the rest of the request.
    if (!this.isInputEnded) this.connection.writer.reset(this.id, ErrorCode.noError);
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
    this.connection.deadlines.remove(this);
    this.#unsent = [];
    this.#unsentBytes = 0;
    this.#received = [];
    this.#receivedBytes = 0;
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
