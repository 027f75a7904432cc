import type {
  BodySink,
  Downstream,
  ForwardedHead,
  RequestHandler,
  ResponseFields,
  UpgradedConnection,
} from '../../http/downstream.ts';
import type { Reply } from '../../http/reply.ts';
import { RequestHead } from '../../http/request-head.ts';
import { type HeaderBlock, toHeaderBlock } from '../../http2/frame-writer.ts';
import {
  encodeFieldName,
  encodeResponseFields,
  encodeTrailers,
  getMaxFieldBytes,
  writeField,
  writeString,
} from '../../http2/hpack-encoder.ts';
import { ErrorCode } from '../../http2/protocol.ts';
import { createDeadlines } from '../../lib/deadlines.ts';
import { HeadCache } from '../head-cache.ts';
import { formatDate, listReplyFields } from '../http1/response-text.ts';
import type { ClientConnection, CreateHandler } from '../listener-options.ts';
import { Http2Connection, type Http2ConnectionOptions } from './connection.ts';
import type { RequestFields } from './request-fields.ts';
import type { Http2Stream, StreamHandler } from './stream.ts';

/**
 * - `idle`: it can serve a stream.
 * - `receiving`: the rest of what has arrived is processed first: it may contain the whole body.
 * - `busy`: the request is being served.
 */
type State = 'idle' | 'receiving' | 'busy';

const REQUEST_ID_NAME = encodeFieldName('x-request-id');
const DATE_NAME = encodeFieldName('date');
const CONTINUE = encodeResponseFields(100, []);
const NO_FIELDS: readonly string[] = [];

interface RequestStreamOptions {
  readonly headCache: HeadCache;
  readonly createHandler: CreateHandler;
  /** It can serve another stream. */
  readonly onIdle: (stream: RequestStream) => void;
}

/** The requests of HTTP/2 streams, one after another. */
class RequestStream implements StreamHandler, Downstream, HeaderBlock {
  hasStarted = false;
  readonly maxStatus = 599;
  readonly #options: RequestStreamOptions;
  readonly #handler: RequestHandler;
  #stream!: Http2Stream;
  #head!: RequestHead;
  #state: State = 'idle';
  #sink: BodySink | undefined = undefined;
  /** The response head, until it is written together with what follows it. */
  #response: ForwardedHead | undefined = undefined;
  #fields!: ResponseFields;
  #id = '';
  #extra: readonly string[] = NO_FIELDS;
  /** Bytes of the response body that are still to come; negative: unknown. */
  #bodyLeft = 0;
  #isSent = false;
  #isEnded = false;

  constructor(connection: ClientConnection, options: RequestStreamOptions) {
    this.#options = options;
    this.#handler = options.createHandler(connection, this);
  }

  serve(stream: Http2Stream): void {
    this.#stream = stream;
    this.#head = this.#readHead(stream.fields);
    this.hasStarted = false;
    this.#isSent = false;
    this.#isEnded = false;
    this.#state = 'receiving';
    stream.handler = this;
    if (stream.isInputEnded) this.#handle();
    else stream.awaitReadEnd();
  }

  #readHead(fields: RequestFields): RequestHead {
    if (fields.isTooLarge) return new RequestHead(fields.toRawHeaders(), '2', { reason: 'head_too_large' });
    return (
      this.#options.headCache.read(fields.toText()) ??
      new RequestHead([], '2', { reason: 'malformed', detail: 'an invalid header field' })
    );
  }

  #handle(): void {
    const { method, path } = this.#stream.fields;
    this.#state = 'busy';
    this.#handler.handle(method, path, '2', this.#head);
  }

  onReadEnd(): void {
    if (this.#state === 'receiving') this.#handle();
  }

  onData(part: Buffer): void {
    this.#sink?.push(part);
  }

  onInputEnd(): void {
    this.#takeSink()?.end();
  }

  #takeSink(): BodySink | undefined {
    const sink = this.#sink;
    this.#sink = undefined;
    return sink;
  }

  takeBody(sink: BodySink): Buffer | undefined {
    const stream = this.#stream;
    const received = stream.takeReceived();
    if (stream.isInputEnded) return received;
    this.#sink = sink;
    if (this.#head.expectsContinue && received === undefined) stream.writeHeaders(toHeaderBlock(CONTINUE), false);
    return received;
  }

  hold(bytes: number): void {
    this.#stream.hold(bytes);
  }

  markAuthorized(): void {
    this.#stream.markAuthorized();
  }

  /** All of the request body was received and taken. */
  get isComplete(): boolean {
    return this.#stream.isInputTaken;
  }

  get trailers(): readonly string[] | undefined {
    return this.#stream.requestTrailers;
  }

  pause(): void {
    this.#stream.pause();
  }

  resume(): void {
    this.#stream.resume();
  }

  get isClosed(): boolean {
    return this.#stream.isClosed;
  }

  get unread(): number {
    return this.#stream.unsentBytes;
  }

  writeHead(head: ForwardedHead, fields: ResponseFields, id: string, extra: readonly string[]): void {
    fields.block ??= encodeResponseFields(head.status, fields.list);
    this.#fields = fields;
    this.#id = id;
    this.#extra = extra;
    this.#bodyLeft = head.framing === 'length' ? head.length : -1;
    this.#response = head;
    this.hasStarted = true;
  }

  write(bytes: Buffer, start: number, end: number): boolean {
    this.#sendHead(false);
    this.#bodyLeft -= end - start;
    return this.#stream.write(bytes, start, end, this.#bodyLeft === 0);
  }

  flush(): boolean {
    this.#sendHead(false);
    return this.#stream.unsentBytes === 0;
  }

  end(trailers?: readonly string[]): void {
    this.#isEnded = true;
    if (this.#isSent) return this.#finish(false);
    if (trailers !== undefined) {
      this.#sendHead(false);
      this.#stream.end(toHeaderBlock(encodeTrailers(trailers)));
    } else if (this.#response !== undefined) this.#sendHead(true);
    else this.#stream.end();
  }

  #sendHead(isEnd: boolean): void {
    if (this.#response === undefined) return;
    this.#stream.writeHeaders(this, isEnd);
    this.#response = undefined;
  }

  get maxSize(): number {
    let size =
      (this.#fields.block as Buffer).length +
      getMaxFieldBytes('x-request-id', this.#id) +
      getMaxFieldBytes('date', '') +
      32;
    for (let at = 0; at < this.#extra.length; at += 2)
      size += getMaxFieldBytes(this.#extra[at] as string, this.#extra[at + 1] as string);
    return size;
  }

  /** The header block of the response: the cached fields, and those that differ for each request. */
  writeTo(out: Buffer, start: number): number {
    let at = start + (this.#fields.block as Buffer).copy(out, start);
    at += REQUEST_ID_NAME.copy(out, at);
    at = writeString(out, at, this.#id);
    if (this.#response?.hasDate === false) {
      at += DATE_NAME.copy(out, at);
      at = writeString(out, at, formatDate());
    }
    const extra = this.#extra;
    for (let index = 0; index < extra.length; index += 2)
      at = writeField(out, at, (extra[index] as string).toLowerCase(), extra[index + 1] as string);
    return at;
  }

  respond(reply: Reply): void {
    if (this.isClosed || this.hasStarted) return;
    const { body = '', trailers } = reply;
    const bytes = typeof body === 'string' ? Buffer.from(body) : body;
    const block = encodeResponseFields(reply.status, [...listReplyFields(reply, bytes.length), 'date', formatDate()]);
    const length = this.#stream.fields.method === 'HEAD' ? 0 : bytes.length;
    this.hasStarted = true;
    this.#isEnded = true;
    const stream = this.#stream;
    const isLast = trailers === undefined;
    stream.writeHeaders(toHeaderBlock(block), isLast && length === 0);
    const isSent = length === 0 || stream.write(bytes, 0, length, isLast, true);
    if (!isLast) stream.end(toHeaderBlock(encodeTrailers(Object.entries(trailers).flat())));
    // Text was rendered for this response; a buffer is shared by all.
    if (!isSent && typeof body === 'string') stream.hold(length);
  }

  abort(isClientFault: boolean): void {
    this.#stream.reset(isClientFault ? ErrorCode.cancel : ErrorCode.internalError);
    this.#finish(true);
  }

  upgrade(): UpgradedConnection {
    throw new Error('an HTTP/2 stream cannot be upgraded');
  }

  onDrain(): void {
    this.#handler.onDrain();
  }

  onSent(): void {
    this.#isSent = true;
    if (this.#isEnded) this.#finish(false);
  }

  onClose(): void {
    if (this.#state === 'receiving') this.#release();
    else if (this.#state === 'busy') this.#finish(true);
  }

  #finish(isAborted: boolean): void {
    if (this.#state !== 'busy') return;
    const sink = this.#takeSink();
    const pending = this.#handler.onEnd(isAborted);
    sink?.abort();
    if (pending === undefined) return this.#release();
    // It occupies the process until what serves it is done.
    const { connection } = this.#stream;
    this.#state = 'idle';
    connection.retain();
    const release = (): void => {
      connection.release();
      this.#release();
    };
    void pending.then(release, release);
  }

  #release(): void {
    this.#state = 'idle';
    this.#response = undefined;
    this.#options.onIdle(this);
  }

  onInternalError(error: unknown): void {
    this.#handler.onInternalError(error);
    this.#stream.reset(ErrorCode.internalError);
    this.onClose();
  }
}

interface Http2ServerOptions extends Pick<Http2ConnectionOptions, 'limits' | 'onInternalError'> {
  readonly createHandler: CreateHandler;
  /** A connection was closed because its client exceeded a limit. */
  readonly onAbuse: (connection: ClientConnection, reason: string) => void;
}

/** Returns a function that takes over a connection whose handshake selected HTTP/2. */
export function createHttp2Server(options: Http2ServerOptions): (connection: ClientConnection) => Http2Connection {
  const { limits, createHandler, onAbuse, onInternalError } = options;
  const deadlines = createDeadlines();
  const headCache = new HeadCache('2');
  return (connection) =>
    new Http2Connection(connection, {
      limits,
      deadlines,
      onRequest: createStreamPool((onIdle) => new RequestStream(connection, { headCache, createHandler, onIdle })),
      onAbuse: (reason) => onAbuse(connection, reason),
      onInternalError,
    });
}

/** Objects that are kept for later streams of the same connection. */
const MAX_IDLE = 16;

function createStreamPool(
  create: (onIdle: (stream: RequestStream) => void) => RequestStream,
): (stream: Http2Stream) => void {
  const idle: RequestStream[] = [];
  let active = 0;
  const onIdle = (stream: RequestStream): void => {
    active -= 1;
    // An idle connection keeps one.
    if (active === 0) idle.length = 0;
    if (idle.length < MAX_IDLE) idle.push(stream);
  };
  return (stream) => {
    active += 1;
    (idle.pop() ?? create(onIdle)).serve(stream);
  };
}
