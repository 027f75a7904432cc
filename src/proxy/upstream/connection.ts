import type { Socket } from 'node:net';
import { ChunkedBodyReader } from '../../http/chunk-reader.ts';
import { formatLastChunk } from '../../http/raw-headers.ts';
import { flattenString } from '../../lib/flat-string.ts';
import { openSocket, type UpstreamAddress } from './address.ts';
import { explainConnectionError, recognizeProtocol } from './explain-failure.ts';
import { parseResponseHead, type ResponseHead } from './response-head.ts';
import type { UpstreamRequest, UpstreamStream } from './stream.ts';

/** Receives the response to a request that was sent on a connection. */
export interface ResponseHandler {
  onConnected(): void;
  /** The connection takes more of the request. */
  onDrain(): void;
  onHead(head: ResponseHead): void;
  /** A part of the body, in a buffer that is reused after the next call. False: reading pauses after this read. */
  onData(bytes: Buffer, start: number, end: number): boolean;
  /** Everything that was read at once has been reported. */
  onReadEnd(): void;
  /**
   * The response is complete, and the connection no longer belongs to the handler. `isKept`: it is used again.
   * `trailers`: names and values, as received.
   */
  onEnd(isKept: boolean, trailers?: readonly string[]): void;
  /** No response was received, or only a part of it. The connection is closed. */
  onError(error: UpstreamError): void;
  onInternalError(error: unknown): void;
}

const TIMEOUTS: ReadonlySet<string> = new Set(['connect_timeout', 'response_timeout']);

/** A connection failed before the response was complete. */
export class UpstreamError extends Error {
  readonly code: string;
  /** No connection was established. */
  readonly isUnreached: boolean;
  /** The upstream closed a connection that it had kept open, without a byte of a response. */
  readonly isIdleClose: boolean;
  /** The upstream has declared that it has not processed the request (RFC 9113 §8.7). */
  readonly isUnprocessed: boolean;

  constructor(
    message: string,
    code: string,
    options: { isUnreached?: boolean; isIdleClose?: boolean; isUnprocessed?: boolean } = {},
  ) {
    super(message);
    this.code = code;
    this.isUnreached = options.isUnreached ?? false;
    this.isIdleClose = options.isIdleClose ?? false;
    this.isUnprocessed = options.isUnprocessed ?? false;
  }

  /** The target seems to be unavailable. It is not if it closes connections that are idle, or that it announced to close. */
  get isFailure(): boolean {
    return this.isUnreached || !(this.isIdleClose || this.isUnprocessed);
  }

  get isTimeout(): boolean {
    return TIMEOUTS.has(this.code);
  }
}

/** What follows the path in the request line, `Host` and `Connection` with it. */
export interface Opening {
  readonly keepAlive: string;
  /** Where the connection is not used again. */
  readonly close: string;
}

export function createOpening({ host }: UpstreamAddress): Opening {
  const start = ` HTTP/1.1\r\nhost: ${host}\r\nconnection: `;
  return { keepAlive: flattenString(`${start}keep-alive\r\n`), close: flattenString(`${start}close\r\n`) };
}

const MAX_HEAD_BYTES = 16_384;
/** Interim responses (1xx) before a response. */
const MAX_INTERIM = 20;
const HEAD_END = Buffer.from('\r\n\r\n', 'latin1');
/** Up to this size, copying a body behind its head is cheaper than a second write. */
const COPIED_BODY = 16_384;
const LF = 0x0a;
const CR = 0x0d;
/** All connections read into this buffer, and report what they read before the next read. */
const readBuffer = Buffer.allocUnsafeSlow(65_536);

/**
 * One HTTP/1.1 connection to a target, plain or over TLS. It belongs to one exchange from the first byte of the request to
 * the last byte of the response, and is reused only if that response is known to be complete.
 */
export class UpstreamConnection implements UpstreamStream {
  /** Responses it has delivered. */
  responses = 0;
  /** When its last request was started. */
  assignedAt = 0;
  /** When it became idle at the earliest, and for how many seconds it may stay idle. */
  idleSince = 0;
  idleSeconds = 0;
  isConnected = false;
  readonly #socket: Socket;
  readonly #isTls: boolean;
  readonly #opening: Opening;
  readonly #onIdle: (connection: UpstreamConnection) => boolean;
  readonly #onClosed: (connection: UpstreamConnection) => void;
  #handler: ResponseHandler | undefined = undefined;
  #isHead = false;
  #isRequestSent = false;
  #isUsedUp = false;
  /** A part of the response has been received. */
  #hasReceived = false;
  #interim = 0;
  /** The beginning of a head that arrives in parts. */
  #partialHead: Buffer | undefined = undefined;
  #head: ResponseHead | undefined = undefined;
  #bytesLeft = 0;
  #chunkedReader: ChunkedBodyReader | undefined = undefined;
  #keepsReading = true;
  #error: Error | undefined = undefined;
  /** The last head and its text: most responses of an upstream begin with the same bytes. */
  #lastHeadText = '';
  #lastIsHead = false;
  #lastHead: ResponseHead | undefined = undefined;

  constructor(
    address: UpstreamAddress,
    opening: Opening,
    onIdle: (connection: UpstreamConnection) => boolean,
    onClosed: (connection: UpstreamConnection) => void,
  ) {
    this.#isTls = address.tls !== undefined;
    this.#onIdle = onIdle;
    this.#onClosed = onClosed;
    this.#opening = opening;
    this.#socket = openSocket(address, 'http/1.1', {
      buffer: readBuffer,
      callback: (count, bytes) => this.#onBytes(bytes as Buffer, count),
    });
    this.#socket
      .on(this.#isTls ? 'secureConnect' : 'connect', () => {
        this.isConnected = true;
        this.#guard(() => this.#handler?.onConnected());
      })
      .on('drain', () => this.#guard(() => this.#handler?.onDrain()))
      .on('error', (error) => {
        this.#error = error;
      })
      .on('end', () => this.#guard(() => this.#onEnd()))
      .on('close', () => this.#guard(() => this.#onClose()));
  }

  /** An error in the handler ends its exchange, but not the process. */
  #guard(handle: () => void): void {
    const handler = this.#handler;
    try {
      handle();
    } catch (error) {
      if (handler === undefined) throw error;
      this.discard();
      handler.onInternalError(error);
    }
  }

  /** Everything was written. Over TLS, that is known only after the response may have arrived. */
  get isFlushed(): boolean {
    return this.#socket.writableLength === 0;
  }

  get isClosed(): boolean {
    return this.#socket.destroyed;
  }

  /** From here on the connection belongs to this handler, until the response is complete. `startedAt`: by `performance.now()`. */
  assign(handler: ResponseHandler, isHead: boolean, startedAt: number): void {
    this.#handler = handler;
    this.assignedAt = startedAt;
    this.#isHead = isHead;
    this.#isRequestSent = false;
    this.#hasReceived = false;
    this.#interim = 0;
  }

  send(request: UpstreamRequest, framing: string, content: Buffer | undefined): void {
    if (content === undefined || content.length === 0) {
      this.sendHead(request, framing);
      this.#isRequestSent = true;
    } else if (content.length <= COPIED_BODY) {
      this.#isRequestSent = true;
      const head = this.#formatHead(request, framing);
      const bytes = Buffer.allocUnsafe(head.length + content.length);
      bytes.write(head, 0, 'latin1');
      content.copy(bytes, head.length);
      this.#socket.write(bytes);
    } else {
      this.cork();
      this.sendHead(request, framing);
      this.write(content, true);
      this.uncork();
    }
  }

  sendHead(request: UpstreamRequest, framing: string): void {
    this.#socket.write(this.#formatHead(request, framing), 'latin1');
  }

  #formatHead({ method, path, fields }: UpstreamRequest, framing: string): string {
    const opening = this.#isUsedUp ? this.#opening.close : this.#opening.keepAlive;
    return `${method} ${path}${opening}${fields}${framing}\r\n`;
  }

  write(part: Buffer, isLast: boolean): boolean {
    this.#isRequestSent = isLast;
    return this.#socket.write(part);
  }

  /** RFC 9112 §7.1. */
  writeChunk(part: Buffer): boolean {
    this.cork();
    this.#socket.write(`${part.length.toString(16)}\r\n`, 'latin1');
    this.#socket.write(part);
    const canWriteMore = this.#socket.write('\r\n', 'latin1');
    this.uncork();
    return canWriteMore;
  }

  endChunks(trailers?: readonly string[]): void {
    this.#isRequestSent = true;
    this.#socket.write(formatLastChunk(trailers), 'latin1');
  }

  /** It is closed after this request, whatever the response says. */
  closeAfterResponse(): void {
    this.#isUsedUp = true;
  }

  cork(): void {
    this.#socket.cork();
  }

  uncork(): void {
    this.#socket.uncork();
  }

  /** Reading pauses after this read; the same as an `onData` that returns false. */
  pause(): void {
    this.#keepsReading = false;
  }

  resume(): void {
    this.#keepsReading = true;
    this.#socket.resume();
  }

  /** Closes it without reporting anything to the handler. */
  discard(): void {
    this.#handler = undefined;
    this.#socket.destroy();
  }

  /** Closes it; its exchange fails. */
  destroy(): void {
    this.#socket.destroy();
  }

  #onBytes(bytes: Buffer, count: number): boolean {
    const handler = this.#handler;
    // Bytes without a request must not be mistaken for the response to the next one.
    if (handler === undefined) {
      this.#socket.destroy();
      return false;
    }
    this.#hasReceived = true;
    this.#keepsReading = true;
    try {
      const problem = this.#head === undefined ? this.#readHead(bytes, count) : this.#readBody(bytes, 0, count);
      if (problem !== undefined) this.#fail(new UpstreamError(problem, 'malformed_response'));
      else this.#handler?.onReadEnd();
    } catch (error) {
      this.discard();
      handler.onInternalError(error);
    }
    return this.#keepsReading;
  }

  #readHead(bytes: Buffer, count: number): string | undefined {
    let message = bytes;
    let end = count;
    if (this.#partialHead !== undefined) {
      message = Buffer.concat([this.#partialHead, bytes.subarray(0, count)]);
      end = message.length;
    }
    for (let at = 0; at < end; ) {
      const headEnd = message.indexOf(HEAD_END, at);
      if (headEnd < 0 || headEnd + 4 > end) {
        const protocol = recognizeProtocol(message.subarray(at, end));
        if (protocol !== undefined) return protocol;
        // Otherwise a head with other line endings would occupy the connection until the timeout.
        if (end - at > MAX_HEAD_BYTES || hasBareLf(message, at, end)) return 'a malformed head';
        this.#partialHead = Buffer.from(message.subarray(at, end));
        return undefined;
      }
      if (headEnd - at > MAX_HEAD_BYTES) return 'response head too large';
      const head = this.#parseHead(message.toString('latin1', at, headEnd));
      if (typeof head === 'string') return recognizeProtocol(message.subarray(at, end)) ?? head;
      at = headEnd + 4;
      this.#partialHead = undefined;
      if (head.status >= 200) return this.#startResponse(head, message, at, end);
      // `Upgrade` and `Expect` are never sent; 100 may still be received (RFC 9110 §15.2).
      if (head.status === 101) return 'an unexpected 101';
      this.#interim += 1;
      if (this.#interim > MAX_INTERIM) return 'too many interim responses';
    }
    return undefined;
  }

  #parseHead(text: string): ResponseHead | string {
    if (this.#lastHead !== undefined && this.#lastIsHead === this.#isHead && this.#lastHeadText === text)
      return this.#lastHead;
    const head = parseResponseHead(text, this.#isHead, this.#isTls);
    if (typeof head !== 'string') {
      this.#lastHeadText = text;
      this.#lastIsHead = this.#isHead;
      this.#lastHead = head;
    }
    return head;
  }

  #startResponse(head: ResponseHead, bytes: Buffer, at: number, end: number): string | undefined {
    this.#head = head;
    this.#bytesLeft = head.length;
    this.#chunkedReader = head.framing === 'chunked' ? new ChunkedBodyReader() : undefined;
    this.#handler?.onHead(head);
    return this.#readBody(bytes, at, end);
  }

  #readBody(bytes: Buffer, start: number, end: number): string | undefined {
    const head = this.#head;
    if (head === undefined || this.#handler === undefined) return undefined;
    switch (head.framing) {
      case 'close':
        if (start < end) this.#report(bytes, start, end);
        return undefined;
      case 'chunked': {
        const reader = this.#chunkedReader as ChunkedBodyReader;
        const progress = reader.read(bytes, start, end, this.#report);
        if (progress === 'malformed') return 'a malformed chunk';
        if (progress === 'complete') this.#finish(reader.offset === end, reader.trailers);
        return undefined;
      }
      case 'none':
      case 'length': {
        const to = Math.min(end, start + this.#bytesLeft);
        if (to > start) this.#report(bytes, start, to);
        this.#bytesLeft -= to - start;
        if (this.#bytesLeft === 0) this.#finish(to === end);
        return undefined;
      }
    }
  }

  readonly #report = (bytes: Buffer, start: number, end: number): void => {
    if (this.#handler?.onData(bytes, start, end) === false) this.#keepsReading = false;
  };

  /** `isExact`: nothing was received after the response. */
  #finish(isExact: boolean, trailers?: readonly string[]): void {
    const handler = this.#handler;
    const head = this.#head;
    this.#handler = undefined;
    this.#head = undefined;
    this.#chunkedReader = undefined;
    this.#keepsReading = true;
    this.responses += 1;
    let isKept = false;
    const isInSync = isExact && this.#isRequestSent && !this.#isUsedUp;
    if (isInSync && !this.#socket.destroyed && head?.isReusable === true) {
      // Less than the upstream says: a request takes time to arrive, and the upstream may be late to read it.
      this.idleSeconds =
        head.keepAlive === undefined ? DEFAULT_IDLE_SECONDS : Math.min(head.keepAlive - 2, MAX_IDLE_SECONDS);
      isKept = this.#onIdle(this);
      // Over TLS, the rest of a response may arrive after its handler has paused reading.
      if (isKept) this.#socket.resume();
    } else this.#socket.destroy();
    handler?.onEnd(isKept, trailers);
  }

  #onEnd(): void {
    if (this.#head?.framing === 'close') return this.#finish(true);
    // Some TLS servers close the connection without an alert.
    const maySpeakTls = !this.#isTls && !this.#hasReceived && this.responses === 0;
    const message = `the upstream closed the connection${maySpeakTls ? ' without a response; if it expects TLS, use https:// in its url' : ''}`;
    this.#fail(new UpstreamError(message, 'connection_closed', { isIdleClose: this.#isIdle }));
  }

  #onClose(): void {
    this.#onClosed(this);
    const { message, code } = (this.#error ?? new Error('the connection is closed')) as NodeJS.ErrnoException;
    this.#fail(
      new UpstreamError(explainConnectionError(message), code ?? 'connection_closed', {
        isUnreached: !this.isConnected,
        isIdleClose: this.#isIdle,
      }),
    );
  }

  get #isIdle(): boolean {
    return !this.#hasReceived && this.responses > 0;
  }

  #fail(error: UpstreamError): void {
    const handler = this.#handler;
    this.#handler = undefined;
    this.#socket.destroy();
    handler?.onError(error);
  }
}

/** How long an idle connection is kept where the upstream does not say. */
const DEFAULT_IDLE_SECONDS = 4;
const MAX_IDLE_SECONDS = 600;

function hasBareLf(bytes: Buffer, start: number, end: number): boolean {
  for (let at = bytes.indexOf(LF, start); at >= 0 && at < end; at = bytes.indexOf(LF, at + 1))
    if (at === start || bytes[at - 1] !== CR) return true;
  return false;
}
