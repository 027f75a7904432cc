import type { Socket } from 'node:net';
import { TLSSocket } from 'node:tls';
import { type FrameHandler, FrameReader, readUInt31 } from '../../../http2/frame-reader.ts';
import { FrameWriter, type HeaderBlock } from '../../../http2/frame-writer.ts';
import { TABLE_SIZE } from '../../../http2/hpack-decoder.ts';
import { EMPTY_TABLE_UPDATE } from '../../../http2/hpack-encoder.ts';
import { OpenStreams } from '../../../http2/open-streams.ts';
import {
  DEFAULT_WINDOW,
  ErrorCode,
  Flag,
  FrameType,
  getPadding,
  MAX_FRAME_SIZE,
  MAX_STREAM_ID,
  MAX_WINDOW,
  PREFACE,
  Setting,
} from '../../../http2/protocol.ts';
import { TokenBucket } from '../../../http2/token-bucket.ts';
import { openSocket, type UpstreamAddress } from '../address.ts';
import { UpstreamError } from '../connection.ts';
import { explainConnectionError, recognizeHttp1 } from '../explain-failure.ts';
import type { UpstreamRequest } from '../stream.ts';
import { RequestBlock } from './request-block.ts';
import { MAX_SECTION_SIZE, ResponseDecoder } from './response-section.ts';
import { Http2UpstreamStream } from './stream.ts';

/** Streams at a time, also where the upstream allows more. */
const MAX_STREAMS = 100;
/** Bytes are acknowledged on arrival, so that only the windows of the streams limit what waits. */
const CONNECTION_WINDOW = 1_048_576;
const SETTINGS_FRAMES = { burst: 20, perSecond: 1 } as const;
const PINGS = { burst: 100, perSecond: 5 } as const;
/** Frames that serve no exchange: empty DATA, PRIORITY, unknown types, frames on closed streams. */
const UNPRODUCTIVE_FRAMES = { burst: 1_000, perSecond: 50 } as const;
const MAX_SETTINGS = 32;
const MAX_CONTINUATIONS = 8;
const LAST_STREAM_ID = 0x3fffffff;
/** How long a connection that is being closed may take to send what was written. */
const LINGER_MS = 1_000;
/** A connection may be broken if an exchange was given up on it after nothing was received for this long. */
const SILENT_MS = 1_000;
const KEEP_ALIVE_PING = Buffer.from('upstream', 'latin1');
const NO_TURNS = { isOver: false, count: () => false } as const;
/** What authorized requests make the process hold is limited by the slots of the upstream. */
const NO_ACCOUNT = { mayGrow: true, hasAuthorized: true, add: () => {} } as const;
/** All connections read into this buffer, and copy what they read. */
const readBuffer = Buffer.allocUnsafeSlow(65_536);

interface PartialSection {
  readonly streamId: number;
  readonly isEnd: boolean;
  readonly parts: Buffer[];
  size: number;
}

export interface ConnectionEvents {
  /** `maxStreams`: how many streams at a time the upstream allows. */
  onConnected(maxStreams: number): void;
  /** The upstream allows fewer streams at a time than were assigned. */
  onExcess(stream: Http2UpstreamStream): void;
  onClosed(connection: Http2UpstreamConnection): void;
}

/**
 * - `connecting`, until the upstream has sent its settings; `open`.
 * - `draining`: the exchanges end, and none begins.
 */
type State = 'connecting' | 'open' | 'draining' | 'closed';

/** The client side of an HTTP/2 connection (RFC 9113). An error of a stream ends its exchange only. */
export class Http2UpstreamConnection implements FrameHandler {
  readonly writer: FrameWriter;
  /** The windows that the upstream granted: for each new stream, and for the connection. */
  sendWindow = DEFAULT_WINDOW;
  #initialSendWindow = DEFAULT_WINDOW;
  /** Responses it has delivered. */
  responses = 0;
  /** When something was received, or an exchange ended. */
  lastActiveAt = performance.now();
  readonly #socket: Socket;
  readonly #isTls: boolean;
  readonly #host: string;
  readonly #events: ConnectionEvents;
  readonly #frames = new FrameReader(this, NO_TURNS, 'server');
  readonly #decoder = new ResponseDecoder();
  readonly #streams = new OpenStreams<Http2UpstreamStream>();
  /** Assigned before the connection was established. */
  #waiting: Http2UpstreamStream[] = [];
  /** Exchanges that it was given, also those whose request was not sent. */
  #assigned = 0;
  #maxStreams: number;
  /** The upstream has refused a stream: it gets no other until one ends. */
  #isFull = false;
  /** It may be broken: it gets no other stream until something is received. */
  #isSilent = false;
  #lastReceivedAt = performance.now();
  #nextId = 1;
  #state: State = 'connecting';
  readonly #blocked = new Set<Http2UpstreamStream>();
  /** Streams that received something in the current read. */
  #readStreams: Http2UpstreamStream[] = [];
  #partialSection: PartialSection | undefined = undefined;
  #receiveWindow = CONNECTION_WINDOW;
  #unacknowledged = 0;
  readonly #settings = new TokenBucket(SETTINGS_FRAMES.burst, SETTINGS_FRAMES.perSecond);
  readonly #pings = new TokenBucket(PINGS.burst, PINGS.perSecond);
  readonly #unproductive = new TokenBucket(UNPRODUCTIVE_FRAMES.burst, UNPRODUCTIVE_FRAMES.perSecond);
  #mustUpdateTable = false;
  #hasReceived = false;
  /** When a PING was sent that is not acknowledged. */
  #pingedAt: number | undefined = undefined;
  #error: Error | undefined = undefined;

  /** `expectedStreams`: how many streams the upstream allowed on the last connection. */
  constructor(address: UpstreamAddress, events: ConnectionEvents, expectedStreams = MAX_STREAMS) {
    this.#maxStreams = expectedStreams;
    this.#isTls = address.tls !== undefined;
    this.#host = address.host;
    this.#events = events;
    this.#socket = openSocket(address, 'h2', {
      buffer: readBuffer,
      callback: (count, bytes) => {
        this.#onBytes(Buffer.from((bytes as Buffer).subarray(0, count)));
        return true;
      },
    });
    this.writer = new FrameWriter(this.#socket, NO_ACCOUNT, () => this.#sendBlocked());
    this.#socket
      .on(this.#isTls ? 'secureConnect' : 'connect', () => this.#start())
      .on('error', (error) => {
        this.#error = error;
      })
      .on('end', () => this.#close('the upstream closed the connection', 'connection_closed'))
      .on('close', () => this.#onClose());
  }

  /** RFC 9113 §3.4. */
  #start(): void {
    if (this.#socket instanceof TLSSocket && this.#socket.alpnProtocol !== 'h2')
      return this.#close(NO_ALPN, 'malformed_response');
    this.#socket.write(PREFACE);
    this.writer.settings([
      [Setting.enablePush, 0],
      [Setting.maxHeaderListSize, MAX_SECTION_SIZE],
    ]);
    this.writer.windowUpdate(0, CONNECTION_WINDOW - DEFAULT_WINDOW);
  }

  get isConnected(): boolean {
    return this.#state === 'open' || this.#state === 'draining';
  }

  get isClosed(): boolean {
    return this.#state === 'closed';
  }

  /** It takes another exchange. */
  get hasRoom(): boolean {
    return (
      (this.#state === 'open' || this.#state === 'connecting') &&
      !this.#isFull &&
      !this.#isSilent &&
      this.#assigned < this.#maxStreams
    );
  }

  get isIdle(): boolean {
    return this.#assigned === 0;
  }

  createStream(): Http2UpstreamStream {
    const stream = new Http2UpstreamStream(this);
    this.adopt(stream);
    return stream;
  }

  /** Takes over a stream whose request was not sent. */
  adopt(stream: Http2UpstreamStream): void {
    stream.moveTo(this);
    this.#assigned += 1;
    if (this.#state === 'connecting') this.#waiting.push(stream);
  }

  /** Sends the head of a request. */
  open(stream: Http2UpstreamStream, request: UpstreamRequest, framing: string, isEnd: boolean): void {
    // The connection was closed while the request was being prepared.
    if (this.#state === 'closed')
      throw new UpstreamError('the connection is closed', 'connection_closed', { isUnprocessed: true });
    stream.id = this.#nextId;
    stream.sentAt = performance.now();
    stream.sendWindow = this.#initialSendWindow;
    this.#nextId += 2;
    this.#streams.add(stream);
    const block = new RequestBlock(this.#isTls ? 'https' : 'http', this.#host, request, framing);
    this.writer.headers(stream.id, isEnd, this.#mustUpdateTable ? withTableUpdate(block) : block);
    this.#mustUpdateTable = false;
    if (this.#nextId > LAST_STREAM_ID) this.drain();
  }

  /** An exchange has ended. `code`: for RST_STREAM. */
  remove(stream: Http2UpstreamStream, code: ErrorCode | undefined): void {
    this.#assigned -= 1;
    const now = performance.now();
    this.lastActiveAt = now;
    const isGivenUp = stream.id === 0 || code === ErrorCode.cancel;
    if (isGivenUp && now - Math.max(this.#lastReceivedAt, stream.sentAt) >= SILENT_MS) this.#isSilent = true;
    if (stream.id === 0) this.#waiting = this.#waiting.filter((one) => one !== stream);
    else {
      this.#streams.delete(stream);
      if (this.#blocked.size > 0) this.#blocked.delete(stream);
      if (code !== undefined && !this.isClosed) this.writer.reset(stream.id, code);
      this.#isFull = false;
    }
    if (this.#assigned > 0) return;
    // No exchange waits for the connection any more.
    if (this.#state === 'connecting') this.#socket.destroy();
    else if (this.#state === 'draining' || this.#isSilent) this.#end();
  }

  countResponse(): void {
    this.responses += 1;
  }

  /** No exchange begins from now on, and it is closed after the last one. */
  drain(): void {
    if (this.#state !== 'open') return;
    this.#state = 'draining';
    if (this.#assigned === 0) this.#end();
  }

  #end(): void {
    if (this.isClosed) return;
    this.writer.goaway(0, ErrorCode.noError);
    this.#state = 'closed';
    this.writer.end();
    const timer = setTimeout(() => this.#socket.destroy(), LINGER_MS);
    this.#socket.once('close', () => clearTimeout(timer));
  }

  /** Closes it; its exchanges fail. */
  destroy(): void {
    this.#close('the connection is closed', 'connection_closed');
  }

  /** Sends a PING if nothing was received for this long; closes the connection if it was not acknowledged in time. */
  checkAlive(now: number, silentMs: number, timeoutMs: number): void {
    if (this.#state === 'closed' || this.#state === 'connecting') return;
    if (this.#pingedAt !== undefined) {
      if (now - this.#pingedAt > timeoutMs) this.#close('the upstream did not acknowledge a PING', 'response_timeout');
    } else if (now - this.lastActiveAt > silentMs) {
      this.#pingedAt = now;
      this.writer.ping(KEEP_ALIVE_PING, 0, false);
    }
  }

  #onBytes(part: Buffer): void {
    if (this.isClosed) return;
    this.lastActiveAt = performance.now();
    this.#lastReceivedAt = this.lastActiveAt;
    this.#isSilent = false;
    this.#pingedAt = undefined;
    if (!this.#hasReceived) {
      this.#hasReceived = true;
      const protocol = recognizeHttp1(part);
      if (protocol !== undefined) return this.#close(protocol, 'malformed_response');
    }
    if (!this.#frames.read(part)) return;
    this.#endRead();
  }

  #endRead(): void {
    const streams = this.#readStreams;
    if (streams.length > 0) {
      this.#readStreams = [];
      for (const stream of streams) stream.endRead();
    }
    // Once for all window updates.
    if (this.#blocked.size > 0) this.#sendBlocked();
  }

  onTurnOver(): void {
    this.#socket.pause();
    setImmediate(() => {
      const rest = this.#frames.takeRest();
      if (this.isClosed) return;
      this.#socket.resume();
      if (this.#frames.read(rest)) this.#endRead();
    });
  }

  #onClose(): void {
    const { message, code } = (this.#error ?? new Error('the connection is closed')) as NodeJS.ErrnoException;
    this.#close(explainConnectionError(message), code ?? 'connection_closed');
    this.writer.close();
    this.#events.onClosed(this);
  }

  #close(message: string, code: string): void {
    const wasConnected = this.isConnected;
    if (this.#state !== 'closed') {
      for (const stream of [...this.#streams.list(), ...this.#waiting])
        stream.failWith(message, code, wasConnected && stream.id === 0);
      this.#state = 'closed';
    }
    this.#socket.destroy();
  }

  /** An error of the connection (RFC 9113 §5.4.1). */
  fail(code: ErrorCode, problem = `a malformed frame (error code ${code})`): void {
    if (this.isClosed) return;
    this.writer.goaway(0, code);
    this.writer.flush();
    this.#close(`the upstream sent ${problem}`, 'malformed_response');
  }

  #countUnproductive(): void {
    if (!this.#unproductive.take()) this.fail(ErrorCode.enhanceYourCalm, 'too many frames without a purpose');
  }

  onFrame(type: number, flags: number, id: number, bytes: Buffer, start: number, end: number): void {
    const section = this.#partialSection;
    if (section !== undefined && (type !== FrameType.continuation || id !== section.streamId))
      return this.fail(ErrorCode.protocolError, 'an incomplete header section');
    switch (type) {
      case FrameType.data:
        return this.#readData(flags, id, bytes, start, end);
      case FrameType.headers:
        return this.#readHeaders(flags, id, bytes, start, end);
      case FrameType.resetStream:
        return this.#readReset(id, bytes, start, end);
      case FrameType.settings:
        return this.#readSettings(flags, id, bytes, start, end);
      case FrameType.ping:
        return this.#readPing(flags, id, bytes, start, end);
      case FrameType.goaway:
        return this.#readGoaway(id, bytes, start, end);
      case FrameType.windowUpdate:
        return this.#readWindowUpdate(id, bytes, start, end);
      case FrameType.continuation:
        return this.#readContinuation(flags, bytes, start, end);
      case FrameType.pushPromise:
        return this.fail(ErrorCode.protocolError, 'PUSH_PROMISE, which was disabled');
      default:
        return this.#countUnproductive();
    }
  }

  /** Not begun by this side. */
  #isIdleStream(id: number): boolean {
    return (id & 1) === 0 || id >= this.#nextId;
  }

  #readData(flags: number, id: number, bytes: Buffer, start: number, end: number): void {
    const size = end - start;
    if (this.#isIdleStream(id)) return this.fail(ErrorCode.protocolError, 'DATA on a stream that was not begun');
    if (size > this.#receiveWindow)
      return this.fail(ErrorCode.flowControlError, 'more DATA than the window of the connection allows');
    this.#receiveWindow -= size;
    this.#acknowledge(size);
    const padding = getPadding(flags, bytes, start, end);
    if (padding === undefined) return this.fail(ErrorCode.protocolError, 'DATA with invalid padding');
    const isEnd = (flags & Flag.endStream) !== 0;
    const stream = this.#streams.get(id);
    // It may have been sent before the upstream received the reset of the stream.
    if (stream === undefined) return this.#countUnproductive();
    const dataStart = (flags & Flag.padded) === 0 ? start : start + 1;
    if (dataStart === end - padding && !isEnd) this.#countUnproductive();
    this.#readStreams.push(stream);
    stream.receiveData(bytes, dataStart, end - padding, size, isEnd);
  }

  #acknowledge(size: number): void {
    this.#unacknowledged += size;
    if (this.#unacknowledged < CONNECTION_WINDOW / 2) return;
    this.writer.windowUpdate(0, this.#unacknowledged);
    this.#receiveWindow += this.#unacknowledged;
    this.#unacknowledged = 0;
  }

  #readHeaders(flags: number, id: number, bytes: Buffer, start: number, end: number): void {
    if (this.#isIdleStream(id)) return this.fail(ErrorCode.protocolError, 'HEADERS on a stream that was not begun');
    const padding = getPadding(flags, bytes, start, end);
    if (padding === undefined) return this.fail(ErrorCode.protocolError, 'HEADERS with invalid padding');
    let at = (flags & Flag.padded) === 0 ? start : start + 1;
    if ((flags & Flag.priority) !== 0) at += 5;
    const blockEnd = end - padding;
    if (at > blockEnd) return this.fail(ErrorCode.frameSizeError, 'HEADERS that are too short');
    const isEnd = (flags & Flag.endStream) !== 0;
    if ((flags & Flag.endHeaders) !== 0) return this.#readSection(id, isEnd, bytes, at, blockEnd);
    const parts = [Buffer.from(bytes.subarray(at, blockEnd))];
    this.#partialSection = { streamId: id, isEnd, parts, size: blockEnd - at };
  }

  #readContinuation(flags: number, bytes: Buffer, start: number, end: number): void {
    const section = this.#partialSection;
    if (section === undefined) return this.fail(ErrorCode.protocolError, 'CONTINUATION without HEADERS');
    section.size += end - start;
    if (section.parts.length > MAX_CONTINUATIONS || section.size > MAX_SECTION_SIZE)
      return this.fail(ErrorCode.enhanceYourCalm, 'a header section that is too large');
    section.parts.push(Buffer.from(bytes.subarray(start, end)));
    if ((flags & Flag.endHeaders) === 0) return;
    this.#partialSection = undefined;
    const block = Buffer.concat(section.parts);
    this.#readSection(section.streamId, section.isEnd, block, 0, block.length);
  }

  #readSection(id: number, isEnd: boolean, bytes: Buffer, start: number, end: number): void {
    // It is decoded in any case: later sections depend on its effect on the dynamic table.
    const section = this.#decoder.decode(bytes, start, end);
    if (section === 'malformed') return this.fail(ErrorCode.compressionError, 'a malformed header block');
    if (section === 'too_large') return this.fail(ErrorCode.enhanceYourCalm, 'a header section that is too large');
    const stream = this.#streams.get(id);
    if (stream === undefined) return this.#countUnproductive();
    this.#readStreams.push(stream);
    stream.receiveSection(section, isEnd);
  }

  #readReset(id: number, bytes: Buffer, start: number, end: number): void {
    if (this.#isIdleStream(id)) return this.fail(ErrorCode.protocolError, 'RST_STREAM on a stream that was not begun');
    if (end - start !== 4) return this.fail(ErrorCode.frameSizeError, 'RST_STREAM of a wrong size');
    const stream = this.#streams.get(id);
    if (stream === undefined) return this.#countUnproductive();
    const code = bytes.readUInt32BE(start);
    stream.receiveReset(code);
    if (code === ErrorCode.refusedStream) this.#isFull = this.#assigned > 0;
  }

  #readSettings(flags: number, id: number, bytes: Buffer, start: number, end: number): void {
    const size = end - start;
    // RFC 9113 §6.5.2: initially, there is no limit.
    if (this.#state === 'connecting') this.#maxStreams = MAX_STREAMS;
    if (id !== 0) return this.fail(ErrorCode.protocolError, 'SETTINGS on a stream');
    if ((flags & Flag.ack) !== 0) {
      if (size !== 0) this.fail(ErrorCode.frameSizeError, 'an acknowledgement of SETTINGS with content');
      else this.#countUnproductive();
      return;
    }
    if (size % 6 !== 0) return this.fail(ErrorCode.frameSizeError, 'SETTINGS of a wrong size');
    if (size > MAX_SETTINGS * 6 || !this.#settings.take())
      return this.fail(ErrorCode.enhanceYourCalm, 'too many settings');
    for (let at = start; at < end; at += 6) {
      const error = this.#applySetting(bytes.readUInt16BE(at), bytes.readUInt32BE(at + 2));
      if (error !== undefined) return this.fail(error, 'an invalid setting');
    }
    this.writer.settingsAck();
    if (this.#state === 'connecting') this.#onConnected();
  }

  #onConnected(): void {
    this.#state = 'open';
    this.#events.onConnected(this.#maxStreams);
    if (this.#maxStreams === 0)
      return this.#close('the upstream allows no requests on a connection', 'malformed_response');
    let sent = 0;
    // Each of them can end others.
    for (let stream = this.#waiting.shift(); stream !== undefined; stream = this.#waiting.shift()) {
      sent += 1;
      if (sent <= this.#maxStreams) stream.connected();
      else {
        this.#assigned -= 1;
        this.#events.onExcess(stream);
      }
    }
  }

  #applySetting(id: number, value: number): ErrorCode | undefined {
    switch (id) {
      case Setting.headerTableSize:
        // RFC 7541 §4.2. The encoder does not use the table.
        this.#mustUpdateTable ||= value < TABLE_SIZE;
        return undefined;
      case Setting.enablePush:
        return value === 0 ? undefined : ErrorCode.protocolError;
      case Setting.maxConcurrentStreams:
        this.#maxStreams = Math.min(value, MAX_STREAMS);
        return undefined;
      case Setting.initialWindowSize:
        return this.#changeInitialWindow(value);
      case Setting.maxFrameSize:
        return value < MAX_FRAME_SIZE || value > 0xffffff ? ErrorCode.protocolError : undefined;
      default:
        return undefined;
    }
  }

  /** RFC 9113 §6.9.2. */
  #changeInitialWindow(value: number): ErrorCode | undefined {
    if (value > MAX_WINDOW) return ErrorCode.flowControlError;
    const change = value - this.#initialSendWindow;
    this.#initialSendWindow = value;
    for (const stream of this.#streams.list()) {
      stream.sendWindow += change;
      if (stream.sendWindow > MAX_WINDOW) return ErrorCode.flowControlError;
      this.addBlocked(stream);
    }
    return undefined;
  }

  #readPing(flags: number, id: number, bytes: Buffer, start: number, end: number): void {
    if (id !== 0) return this.fail(ErrorCode.protocolError, 'PING on a stream');
    if (end - start !== 8) return this.fail(ErrorCode.frameSizeError, 'PING of a wrong size');
    if ((flags & Flag.ack) !== 0) return;
    if (!this.#pings.take()) return this.fail(ErrorCode.enhanceYourCalm, 'too many PING frames');
    this.writer.ping(bytes, start, true);
  }

  /** RFC 9113 §6.8. */
  #readGoaway(id: number, bytes: Buffer, start: number, end: number): void {
    if (id !== 0) return this.fail(ErrorCode.protocolError, 'GOAWAY on a stream');
    if (end - start < 8) return this.fail(ErrorCode.frameSizeError, 'GOAWAY of a wrong size');
    const lastId = readUInt31(bytes, start);
    const code = bytes.readUInt32BE(start + 4);
    if (this.#state === 'open') this.#state = 'draining';
    const message = `the upstream closes the connection (GOAWAY with error code ${code})`;
    for (const stream of this.#streams.list()) if (stream.id > lastId) stream.failWith(message, 'stream_refused', true);
    if (this.#state === 'connecting') this.#close(message, 'connection_closed');
    else if (this.#assigned === 0) this.#end();
    else if (lastId < MAX_STREAM_ID) this.#countUnproductive();
  }

  #readWindowUpdate(id: number, bytes: Buffer, start: number, end: number): void {
    if (end - start !== 4) return this.fail(ErrorCode.frameSizeError, 'WINDOW_UPDATE of a wrong size');
    const increment = readUInt31(bytes, start);
    if (id === 0) {
      this.sendWindow += increment;
      if (increment === 0 || this.sendWindow > MAX_WINDOW)
        this.fail(ErrorCode.flowControlError, 'an invalid WINDOW_UPDATE');
      return;
    }
    if (this.#isIdleStream(id))
      return this.fail(ErrorCode.protocolError, 'WINDOW_UPDATE on a stream that was not begun');
    const stream = this.#streams.get(id);
    if (stream === undefined) return;
    stream.sendWindow += increment;
    if (increment === 0 || stream.sendWindow > MAX_WINDOW) return stream.reject('an invalid WINDOW_UPDATE');
    this.addBlocked(stream);
  }

  /** Other streams wait for the connection. A stream that writes now waits behind them. */
  get isBlocked(): boolean {
    return this.#blocked.size > 0;
  }

  addBlocked(stream: Http2UpstreamStream): void {
    if (stream.canSend) this.#blocked.add(stream);
  }

  /** Each stream sends one frame in turn, as long as the connection takes it. */
  #sendBlocked(): void {
    for (const stream of this.#blocked) {
      if (this.writer.needsDrain || this.sendWindow <= 0) return;
      this.#blocked.delete(stream);
      if (stream.canSend) stream.sendUnsent();
      // Added again, it comes last.
      this.addBlocked(stream);
    }
  }

  writeData(streamId: number, flags: number, bytes: Buffer, start: number, end: number): void {
    this.sendWindow -= end - start;
    this.writer.data(streamId, flags, bytes, start, end);
  }
}

const NO_ALPN =
  'the upstream accepts no HTTP/2 over TLS (ALPN); enable HTTP/2 there, or remove `protocol: http2` from its settings';

const withTableUpdate = (block: HeaderBlock): HeaderBlock => ({
  maxSize: block.maxSize + 1,
  writeTo(out, at) {
    out[at] = EMPTY_TABLE_UPDATE;
    return block.writeTo(out, at + 1);
  },
});
