import { ByteQueue } from '../../../http2/byte-queue.ts';
import { type HeaderBlock, toHeaderBlock } from '../../../http2/frame-writer.ts';
import { encodeTrailers } from '../../../http2/hpack-encoder.ts';
import { DEFAULT_WINDOW, ErrorCode, Flag, MAX_FRAME_SIZE } from '../../../http2/protocol.ts';
import { type ResponseHandler, UpstreamError } from '../connection.ts';
import type { UpstreamRequest, UpstreamStream } from '../stream.ts';
import type { Http2UpstreamConnection } from './connection.ts';
import type { ResponseSection } from './response-section.ts';

/** Interim responses (1xx) before a response. */
const MAX_INTERIM = 20;
/** Bytes that an upstream may send before the client's side has taken them. They are held here while the client does not read. */
const STREAM_WINDOW = DEFAULT_WINDOW;

/** One request and its response on an HTTP/2 connection (RFC 9113 §5). */
export class Http2UpstreamStream implements UpstreamStream {
  /** 0 until the request is sent. */
  id = 0;
  /** By `performance.now()`. */
  sentAt = 0;
  /** Bytes that may still be sent, as far as this stream is concerned; negative after the upstream has reduced it. */
  sendWindow = 0;
  #connection: Http2UpstreamConnection;
  #handler: ResponseHandler | undefined = undefined;
  #isHeadRequest = false;
  #hasReceived = false;
  #interim = 0;
  #hasHead = false;
  /** Bytes of the body that are still to come; undefined: unknown. */
  #bodyLeft: number | undefined = undefined;
  #isPaused = false;
  /** What arrived while the client's side took nothing. */
  readonly #received = new ByteQueue();
  #isInputEnded = false;
  #receiveWindow: number = STREAM_WINDOW;
  /** Bytes that were taken, and not added to the window again. */
  #unacknowledged = 0;
  #isOutputEnded = false;
  /** Written, and not sent. */
  readonly #unsent = new ByteQueue();
  #endsAfterUnsent = false;
  /** They end the request. */
  #requestTrailers: HeaderBlock | undefined = undefined;
  #responseTrailers: readonly string[] | undefined = undefined;
  #isClosed = false;

  constructor(connection: Http2UpstreamConnection) {
    this.#connection = connection;
  }

  get isConnected(): boolean {
    return this.#connection.isConnected;
  }

  /** The upstream allows fewer streams than have been assigned: another connection carries this one. */
  moveTo(connection: Http2UpstreamConnection): void {
    this.#connection = connection;
  }

  assign(handler: ResponseHandler, isHead: boolean): void {
    this.#handler = handler;
    this.#isHeadRequest = isHead;
  }

  /** Other exchanges use the connection, and responses cannot be mistaken for each other. */
  closeAfterResponse(): void {}

  cork(): void {}

  uncork(): void {}

  /** The connection can be used. */
  connected(): void {
    this.#call((handler) => handler.onConnected());
  }

  send(request: UpstreamRequest, framing: string, content: Buffer | undefined): void {
    const hasContent = content !== undefined && content.length > 0;
    this.#open(request, framing, !hasContent);
    if (hasContent) this.write(content, true);
  }

  sendHead(request: UpstreamRequest, framing: string): void {
    this.#open(request, framing, false);
  }

  #open(request: UpstreamRequest, framing: string, isEnd: boolean): void {
    this.#isOutputEnded = isEnd;
    this.#connection.open(this, request, framing, isEnd);
  }

  /** The part is not used again by its owner. */
  write(part: Buffer, isLast: boolean): boolean {
    if (this.#isClosed || this.#isOutputEnded) return true;
    const connection = this.#connection;
    const mustWait = this.#unsent.length > 0;
    const sent = mustWait || connection.isBlocked ? 0 : this.#sendData(part, isLast);
    if (sent === part.length && !mustWait) {
      if (isLast && !this.#isOutputEnded) this.#end();
      return true;
    }
    this.#unsent.add(part.subarray(sent));
    this.#endsAfterUnsent ||= isLast;
    connection.addBlocked(this);
    return false;
  }

  writeChunk(part: Buffer): boolean {
    return this.write(part, false);
  }

  endChunks(trailers?: readonly string[]): void {
    if (this.#isClosed || this.#isOutputEnded) return;
    this.#requestTrailers = trailers && toHeaderBlock(encodeTrailers(trailers));
    if (this.#unsent.length > 0) this.#endsAfterUnsent = true;
    else this.#end();
  }

  #end(): void {
    if (this.#requestTrailers === undefined) this.#connection.writer.endStream(this.id);
    else this.#connection.writer.headers(this.id, true, this.#requestTrailers);
    this.#isOutputEnded = true;
  }

  /** Sends DATA frames as far as the windows allow, and returns how many bytes that was. */
  #sendData(bytes: Buffer, isLast: boolean): number {
    const connection = this.#connection;
    let at = 0;
    while (at < bytes.length) {
      const size = Math.min(bytes.length - at, connection.sendWindow, this.sendWindow, MAX_FRAME_SIZE);
      if (size <= 0 || connection.writer.needsDrain) break;
      const isEnd = isLast && at + size === bytes.length;
      connection.writeData(this.id, isEnd ? Flag.endStream : 0, bytes, at, at + size);
      this.sendWindow -= size;
      at += size;
      if (isEnd) this.#isOutputEnded = true;
    }
    return at;
  }

  /** Something is waiting, and its own window allows to send it. */
  get canSend(): boolean {
    return this.#unsent.length > 0 && this.sendWindow > 0 && !this.#isClosed;
  }

  /** Sends one frame of what is waiting. */
  sendUnsent(): void {
    const part = this.#unsent.first.subarray(0, MAX_FRAME_SIZE);
    const endsHere = this.#endsAfterUnsent && this.#requestTrailers === undefined;
    const sent = this.#sendData(part, endsHere && part.length === this.#unsent.length);
    if (sent > 0) this.#unsent.consume(sent);
    if (this.#unsent.length > 0) return;
    if (this.#endsAfterUnsent && !this.#isOutputEnded) this.#end();
    this.#call((handler) => handler.onDrain());
  }

  pause(): void {
    this.#isPaused = true;
  }

  resume(): void {
    if (!this.#isPaused || this.#isClosed) return;
    this.#isPaused = false;
    this.#call(() => {
      this.#deliverReceived();
      if (this.#unacknowledged > 0) this.#acknowledge(0);
    });
  }

  discard(): void {
    this.#handler = undefined;
    this.#close(ErrorCode.cancel);
  }

  /** A header section: an interim response, the response, or its trailers. */
  receiveSection(section: ResponseSection, isEnd: boolean): void {
    this.#hasReceived = true;
    if (this.#isInputEnded) return this.reject('a header section after the end of the response');
    if (section.isMalformed) return this.reject('malformed header fields');
    if (this.#hasHead) return this.#receiveTrailers(section, isEnd);
    const { status } = section;
    if (status === 0) return this.reject('a header section without a status');
    if (status >= 200) return this.#receiveHead(section, isEnd);
    this.#interim += 1;
    // RFC 9113 §8.6: there is no 101 in HTTP/2.
    if (isEnd || status === 101) this.reject(`an invalid interim response with status ${status}`);
    else if (this.#interim > MAX_INTERIM) this.reject('too many interim responses');
  }

  #receiveHead(section: ResponseSection, isEnd: boolean): void {
    this.#hasHead = true;
    const head = section.toHead(this.#isHeadRequest, isEnd);
    this.#bodyLeft = head.framing === 'none' ? 0 : section.contentLength;
    if (isEnd && (this.#bodyLeft ?? 0) > 0) return this.reject('a response that ends before its Content-Length');
    this.#call((handler) => handler.onHead(head));
    if (isEnd) this.#endInput();
  }

  #receiveTrailers(section: ResponseSection, isEnd: boolean): void {
    if (!isEnd || section.status !== 0)
      return this.reject('a second header section that is not the end of the response');
    if ((this.#bodyLeft ?? 0) > 0) return this.reject('a response that ends before its Content-Length');
    this.#responseTrailers = section.list;
    this.#endInput();
  }

  /** `size`: with padding. The bytes are valid until this returns. */
  receiveData(bytes: Buffer, start: number, end: number, size: number, isEnd: boolean): void {
    this.#hasReceived = true;
    if (this.#isInputEnded) return this.reject('DATA after the end of the response');
    if (!this.#hasHead) return this.reject('DATA before the header section');
    if (size > this.#receiveWindow) return this.reject('more DATA than the window of the stream allows');
    this.#receiveWindow -= size;
    const length = end - start;
    if (this.#bodyLeft !== undefined) {
      this.#bodyLeft -= length;
      if (this.#bodyLeft < 0) return this.reject('a body that is longer than its Content-Length, or not allowed');
      if (isEnd && this.#bodyLeft > 0) return this.reject('a response that ends before its Content-Length');
    }
    this.#call(() => {
      if (this.#isPaused || this.#received.length > 0) this.#received.append(bytes, start, end);
      else this.#deliver(bytes, start, end);
      this.#acknowledge(size - length);
    });
    if (isEnd) this.#endInput();
  }

  #deliver(bytes: Buffer, start: number, end: number): void {
    if (start === end || this.#handler === undefined) return;
    if (!this.#handler.onData(bytes, start, end)) this.#isPaused = true;
    this.#unacknowledged += end - start;
  }

  #deliverReceived(): void {
    while (this.#received.length > 0 && !this.#isPaused && !this.#isClosed) {
      const part = this.#received.first;
      this.#deliver(part, 0, part.length);
      if (this.#isClosed) return;
      this.#received.consume(part.length);
    }
    if (this.#isInputEnded && this.#received.length === 0) this.#complete();
    else this.#handler?.onReadEnd();
  }

  /** `taken`: in addition to what was delivered. Nothing is acknowledged while the client's side takes nothing. */
  #acknowledge(taken: number): void {
    this.#unacknowledged += taken;
    if (this.#isClosed || this.#isInputEnded || this.#isPaused || this.#unacknowledged < STREAM_WINDOW / 2) return;
    this.#connection.writer.windowUpdate(this.id, this.#unacknowledged);
    this.#receiveWindow += this.#unacknowledged;
    this.#unacknowledged = 0;
  }

  #endInput(): void {
    if (this.#isClosed) return;
    this.#isInputEnded = true;
    if (this.#received.length === 0) this.#complete();
  }

  #complete(): void {
    const handler = this.#handler;
    this.#handler = undefined;
    this.#connection.countResponse();
    // RFC 9113 §8.1: the rest of the request is not needed.
    this.#close(ErrorCode.noError);
    this.#guard(handler, () => handler?.onEnd(false, this.#responseTrailers));
  }

  /** Everything that was read at once has been reported. */
  endRead(): void {
    this.#call((handler) => handler.onReadEnd());
  }

  /** RFC 9113 §6.4. */
  receiveReset(code: number): void {
    const isUnprocessed = code === ErrorCode.refusedStream;
    const message = isUnprocessed
      ? 'the upstream refused the stream'
      : `the upstream reset the stream (error code ${code})`;
    this.fail(new UpstreamError(message, isUnprocessed ? 'stream_refused' : 'stream_reset', { isUnprocessed }));
  }

  /** Nothing more is received, and nothing more can be sent. */
  fail(error: UpstreamError): void {
    // The response has arrived completely, and is delivered when the client's side takes it.
    if (this.#isInputEnded && !this.#isClosed) {
      this.#isOutputEnded = true;
      this.#unsent.clear();
      return;
    }
    const handler = this.#handler;
    this.#handler = undefined;
    this.#close(undefined);
    this.#guard(handler, () => handler?.onError(error));
  }

  /** The connection was closed. */
  failWith(message: string, code: string, isUnprocessed: boolean): void {
    const isIdleClose = !this.#hasReceived && this.id > 0 && this.#connection.responses > 0;
    const isUnreached = !this.#connection.isConnected;
    // Nothing was sent on a connection that was not established.
    const mayBeRepeated = isUnprocessed || isUnreached;
    this.fail(new UpstreamError(message, code, { isUnreached, isIdleClose, isUnprocessed: mayBeRepeated }));
  }

  /** An error of the stream (RFC 9113 §5.4.2). */
  reject(problem: string): void {
    const handler = this.#handler;
    this.#handler = undefined;
    this.#close(ErrorCode.protocolError);
    this.#guard(handler, () => handler?.onError(new UpstreamError(problem, 'malformed_response')));
  }

  #call(handle: (handler: ResponseHandler) => void): void {
    const handler = this.#handler;
    if (handler !== undefined) this.#guard(handler, () => handle(handler));
  }

  /** An error in the handler ends its exchange, but not the connection. */
  #guard(handler: ResponseHandler | undefined, handle: () => void): void {
    try {
      handle();
    } catch (error) {
      this.discard();
      handler?.onInternalError(error);
    }
  }

  /** `code`: for the upstream, unless both sides have ended or it has reset the stream. */
  #close(code: ErrorCode | undefined): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#received.clear();
    this.#unsent.clear();
    const isOpen = this.id > 0 && !(this.#isInputEnded && this.#isOutputEnded);
    this.#connection.remove(this, isOpen ? code : undefined);
  }
}
