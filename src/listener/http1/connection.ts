import type { Socket } from 'node:net';
import { DISCARD_MS, DISCARD_PAUSE_MS, MAX_DISCARDED_BYTES } from '../../http/discarded-body.ts';
import type {
  BodySink,
  Downstream,
  ForwardedHead,
  RequestHandler,
  ResponseFields,
  UpgradedConnection,
} from '../../http/downstream.ts';
import type { Reply } from '../../http/reply.ts';
import { type BufferPool, createBufferPool } from '../../lib/buffer-pool.ts';
import { createDeadlines, type DeadlineEntry, type Deadlines } from '../../lib/deadlines.ts';
import type { ConnectionAccount } from '../client-accounts.ts';
import type { ConnectionSession } from '../connection-tracker.ts';
import { type AwaitedPart, probeHalfClosed } from '../half-close.ts';
import { HeadCache } from '../head-cache.ts';
import {
  type ClientConnection,
  type CreateHandler,
  KEEP_ALIVE_SECONDS,
  type ListenerLimits,
  STALLED_RESPONSE_SECONDS,
} from '../listener-options.ts';
import { getWaitingBytes, turnQueue } from '../turn-queue.ts';
import { BodyReader } from './body-reader.ts';
import { RequestReader } from './request-reader.ts';
import { formatReplyHead, formatStatusOnly } from './response-text.ts';
import { ResponseWriter } from './response-writer.ts';

/** What all HTTP/1.1 connections of a listener share. */
export interface Http1Context {
  readonly limits: Pick<ListenerLimits, 'headers' | 'headerTimeout'>;
  readonly deadlines: Deadlines;
  readonly headCache: HeadCache;
  readonly bufferPool: BufferPool;
}

export const createHttp1Context = (limits: Http1Context['limits']): Http1Context => ({
  limits,
  deadlines: createDeadlines(),
  headCache: new HeadCache('1.1'),
  bufferPool: createBufferPool(),
});

/**
 * - `idle`: between two requests; the reader may hold the beginning of the next one.
 * - `busy`: a request is being served.
 * - `flushing`: the response is complete, and the client has not read all of it.
 * - `discarding`: the response was sent; the rest of the request body is read and discarded.
 * - `lingering`: the last response was sent; what the client still sends is discarded.
 * - `upgraded`: it belongs to another protocol.
 */
type State = 'idle' | 'busy' | 'flushing' | 'discarding' | 'lingering' | 'upgraded' | 'closed';

const CONTINUE = 'HTTP/1.1 100 Continue\r\n\r\n';
const NOTHING = Buffer.alloc(0);

/** An HTTP/1.1 connection: reads requests and serves them one after another (RFC 9112). */
export class Http1Connection implements Downstream, ConnectionSession, DeadlineEntry {
  /** By `performance.now()`. */
  deadline: number;
  previous: DeadlineEntry | undefined = undefined;
  next: DeadlineEntry | undefined = undefined;
  hasStarted = false;
  readonly maxStatus = 999;
  readonly #socket: Socket;
  readonly #context: Http1Context;
  readonly #account: ConnectionAccount;
  readonly #isEncrypted: boolean;
  readonly #reader: RequestReader;
  readonly #body = new BodyReader();
  readonly #writer: ResponseWriter;
  readonly #handler: RequestHandler;
  #state: State = 'idle';
  #isServing = false;
  #sink: BodySink | undefined = undefined;
  readonly #pushPart = (part: Buffer): void => this.#sink?.push(part);
  #isPaused = false;
  /** Bytes in the reader that are charged to the client: it sends more than is served. */
  #waitingBytes = 0;
  /** Charged to the client until the end of the request. */
  #heldBytes = 0;
  /** What has arrived is served in a later turn. */
  #isTurnAwaited = false;
  #requests = 0;
  /** A part of a head has arrived. */
  #isHeadAwaited = false;
  /** The client waits for `100 Continue` before it sends the body. */
  #awaitsContinue = false;
  /** The client has ended its side of the connection. */
  #isInputEnded = false;
  #isLastRequest = false;
  /** Every response from now on is the last one. */
  #isCloseAnnounced = false;
  /** Nor is another request awaited after a response that did not say so. */
  #isClosing = false;
  /** The close of the connection ends the response. */
  #endsByClose = false;
  #isDetached = false;
  #discarded = 0;
  #discardsUntil = 0;
  #stopProbe: (() => void) | undefined = undefined;

  constructor(context: Http1Context, connection: ClientConnection, createHandler: CreateHandler) {
    const { socket, account } = connection;
    this.#context = context;
    this.#socket = socket;
    this.#account = account;
    this.#isEncrypted = connection.encrypted;
    this.#reader = new RequestReader(context.limits.headers, context.headCache);
    this.#writer = new ResponseWriter(socket, context.bufferPool);
    this.#handler = createHandler(connection, this);
    this.deadline = performance.now() + context.limits.headerTimeout * 1_000;
    context.deadlines.add(this);
    account.isIdle = () => this.#state === 'idle' && this.#reader.bytes === undefined;
    account.closeIdle = () => this.close();
    // RFC 9112 §9.6: a client may end its side and wait for the response.
    socket.allowHalfOpen = true;
    this.#attach();
    socket.on('close', this.#onClose);
  }

  #attach(): void {
    this.#socket.on('data', this.#onData).on('drain', this.#onDrain).on('end', this.#onEnd);
  }

  announceClose(): void {
    this.#isCloseAnnounced = true;
  }

  close(): void {
    this.#isCloseAnnounced = true;
    this.#isClosing = true;
    if (this.#state === 'idle' && this.#reader.bytes === undefined) this.#linger(() => this.#socket.end());
  }

  /** Its next response says so already. */
  closeBusy(): void {}

  get isClosed(): boolean {
    return this.#state === 'closed' || this.#socket.destroyed;
  }

  get unread(): number {
    return this.#socket.writableLength;
  }

  get isComplete(): boolean {
    return this.#body.isComplete;
  }

  get trailers(): readonly string[] | undefined {
    return this.#body.trailers;
  }

  hold(bytes: number): void {
    this.#heldBytes += bytes;
    this.#account.add(bytes);
  }

  markAuthorized(): void {
    this.#account.hasAuthorized = true;
    if (this.#heldBytes > 0) this.hold(-this.#heldBytes);
  }

  pause(): void {
    if (this.#isPaused) return;
    this.#isPaused = true;
    this.#socket.pause();
    this.#wait(this.#reader.bytes?.length ?? 0);
  }

  #wait(bytes: number): void {
    this.#account.add(bytes - this.#waitingBytes);
    this.#waitingBytes = bytes;
  }

  /** For the body of the current request. The next request is read when the response is written. */
  resume(): void {
    if (!this.#body.isComplete || this.#reader.bytes === undefined) this.#resume();
  }

  #resume(): void {
    if (!this.#isPaused || this.#isTurnAwaited || this.#isDetached) return;
    this.#isPaused = false;
    if (this.#waitingBytes > 0) this.#wait(0);
    this.#socket.resume();
  }

  onTimeout(): void {
    // Something has arrived, and only the process is late. Whether it is a complete head is known after the turn.
    if (this.#isTurnAwaited) {
      this.deadline = performance.now();
      return;
    }
    const isIdle = this.#state === 'idle' && this.#requests > 0 && !this.#isHeadAwaited;
    if (this.#state !== 'idle' || isIdle) this.#destroy();
    else this.#refuseHead(408);
  }

  /** Closes only this connection. */
  onInternalError(error: unknown): void {
    this.#handler.onInternalError(error);
    this.#destroy();
  }

  /** Where only the close marks the end of the response, a reset shows that it is not complete. */
  #destroy(): void {
    if (this.#endsByClose && this.#state !== 'lingering' && !this.#isEncrypted) this.#socket.resetAndDestroy();
    else this.#socket.destroy();
  }

  readonly #onData = (part: Buffer): void => this.#guard(() => this.#read(part));

  readonly #onDrain = (): void =>
    this.#guard(() => {
      this.#handler.onDrain();
      if (this.#state === 'flushing') this.#finish();
    });

  readonly #onEnd = (): void => this.#guard(() => this.#endInput());

  #guard(handle: () => void): void {
    try {
      handle();
    } catch (error) {
      this.onInternalError(error);
    }
  }

  readonly #onClose = (): void => {
    const state = this.#state;
    this.#state = 'closed';
    this.#context.deadlines.remove(this);
    const sink = this.#takeSink();
    if (state === 'busy' || state === 'flushing') this.#endRequest(true);
    else if (state === 'upgraded') this.#endRequest(false);
    sink?.abort();
  };

  #takeSink(): BodySink | undefined {
    const sink = this.#sink;
    this.#sink = undefined;
    return sink;
  }

  #read(part: Buffer): void {
    if (this.#state === 'lingering') return this.#discard(part.length);
    if (this.#state === 'discarding' || (this.#state === 'busy' && this.#sink !== undefined))
      return this.#readBody(part);
    this.#reader.add(part);
    if (this.#state === 'idle') return this.#serve();
    this.pause();
    // It may have been paused before.
    this.#wait(this.#reader.bytes?.length ?? 0);
  }

  #readBody(part: Buffer): void {
    const body = this.#body;
    if (!body.read(part, this.#pushPart)) return this.#failBody();
    const { consumed } = body;
    // The request may have been refused because of this part.
    const isDiscarding = this.#state === 'discarding';
    if (isDiscarding) {
      this.#discard(consumed);
      if (!body.isComplete) return;
      if (consumed < part.length) this.#reader.add(part.subarray(consumed));
      return this.#awaitRequest();
    }
    if (body.isComplete) this.#takeSink()?.end();
    // The next request. The present one may have been refused by now.
    if (consumed < part.length) this.#read(part.subarray(consumed));
  }

  /** The rest of the body will not arrive, or is malformed: where the next request begins is unknown. */
  #failBody(): void {
    if (this.#state !== 'busy' || this.hasStarted) return this.#destroy();
    this.#isLastRequest = true;
    this.#body.stop();
    this.#takeSink()?.abort();
  }

  takeBody(sink: BodySink): Buffer | undefined {
    const body = this.#body;
    if (body.isComplete) return undefined;
    const { bytes } = this.#reader;
    let content: Buffer | undefined;
    let isMalformed = false;
    if (bytes !== undefined) {
      const parts: Buffer[] = [];
      isMalformed = !body.read(bytes, (part) => parts.push(part));
      this.#reader.consume(body.consumed);
      if (this.#waitingBytes > 0) this.#wait(this.#reader.bytes?.length ?? 0);
      content = parts.length === 1 ? parts[0] : Buffer.concat(parts);
    }
    if (body.isComplete) {
      this.#awaitsContinue = false;
      if (this.#isInputEnded) this.#probe();
      return content;
    }
    this.#sink = sink;
    // Where the next request begins is unknown, also if this one is refused before the sink is aborted.
    if (isMalformed) this.#isLastRequest = true;
    if (isMalformed || this.#isInputEnded)
      // The sink may not be in use yet.
      process.nextTick(() => {
        if (this.#sink === sink) this.#guard(() => this.#failBody());
      });
    else if (this.#awaitsContinue && bytes === undefined) this.#socket.write(CONTINUE, 'latin1');
    this.#awaitsContinue = false;
    return content;
  }

  /** The client sends nothing more, and may wait for its responses (RFC 9112 §9.6). */
  #endInput(): void {
    this.#isInputEnded = true;
    if (this.#isTurnAwaited) return;
    if (this.#state === 'idle') {
      if (this.#reader.bytes === undefined) this.#socket.end();
      else this.#refuseHead(400);
      return;
    }
    if (this.#state === 'discarding') return this.#destroy();
    if (this.#state !== 'busy') return;
    if (this.#body.isComplete) this.#probe();
    else if (this.#sink !== undefined) this.#failBody();
  }

  /** Restarted for each request, and stopped between two: nothing is sent while the next one is authorized. */
  #probe(): void {
    this.#stopProbe?.();
    this.#stopProbe = probeHalfClosed(this.#socket, this.#getAwaitedPart);
  }

  readonly #getAwaitedPart = (): AwaitedPart => {
    if (this.#state !== 'busy') return 'other';
    if (!this.hasStarted) return 'status-line';
    return this.#writer.isChunked ? 'chunk' : 'other';
  };

  /** Serves all requests that have arrived, as long as they are served at once. */
  #serve(): void {
    if (this.#isServing || this.#isTurnAwaited) return;
    this.#isServing = true;
    let isOver = turnQueue.isOver;
    while (this.#state === 'idle' && this.#reader.bytes !== undefined) {
      if (isOver) {
        this.#awaitTurn();
        break;
      }
      isOver = turnQueue.count();
      if (!this.#serveNext()) break;
    }
    this.#isServing = false;
  }

  #awaitTurn(): void {
    this.#isTurnAwaited = true;
    this.pause();
    this.#wait(getWaitingBytes(this.#reader.bytes?.length ?? 0, this.#socket));
    turnQueue.defer(this.#account.account, () => {
      this.#isTurnAwaited = false;
      if (this.#state !== 'idle') return false;
      this.#resume();
      this.#guard(() => this.#serve());
      return true;
    });
  }

  /** Returns false if more must arrive first. */
  #serveNext(): boolean {
    const outcome = this.#reader.readHead();
    if (outcome === 'complete') {
      this.#startRequest();
      return true;
    }
    if (outcome !== 'incomplete') this.#refuseHead(outcome);
    else if (this.#hasNoMoreInput) this.#linger(() => this.#socket.end());
    else if (this.#isInputEnded) this.#refuseHead(400);
    else this.#awaitHead();
    return false;
  }

  /** A head may take some time from its first byte on. */
  #awaitHead(): void {
    if (this.#requests > 0 && !this.#isHeadAwaited)
      this.deadline = performance.now() + this.#context.limits.headerTimeout * 1_000;
    this.#isHeadAwaited = true;
    this.#resume();
    this.#wait(this.#reader.bytes?.length ?? 0);
  }

  /** Responds to a head that is no request: where the next one begins is unknown. */
  #refuseHead(status: number): void {
    this.#linger(() => this.#socket.end(formatStatusOnly(status), 'latin1'));
  }

  #startRequest(): void {
    const { method, target, version, head } = this.#reader;
    this.#body.start(head);
    if (this.#waitingBytes > 0) this.#wait(this.#reader.bytes?.length ?? 0);
    this.#requests += 1;
    this.#state = 'busy';
    this.#isHeadAwaited = false;
    this.deadline = Number.POSITIVE_INFINITY;
    this.#awaitsContinue = head.expectsContinue && (this.#reader.bytes?.length ?? 0) < this.#body.missing;
    // A malformed head may be framed in another way than it says.
    this.#isLastRequest = head.closesConnection(version) || head.refusal !== undefined;
    this.hasStarted = false;
    this.#endsByClose = false;
    if (this.#isInputEnded && this.#body.isComplete) this.#probe();
    this.#handler.handle(method, target, version, head);
    if (this.#state !== 'busy') return;
    const { bytes } = this.#reader;
    if (bytes !== undefined) this.#wait(bytes.length);
    else if (this.#body.isComplete) this.#resume();
  }

  get #hasNoMoreInput(): boolean {
    return this.#isInputEnded && this.#reader.bytes === undefined;
  }

  /** A response is about to be written. True: it is the last one on this connection. */
  #startResponse(isLast: boolean): boolean {
    if (this.#isDetached) {
      this.#isDetached = false;
      this.#attach();
      this.#isLastRequest = true;
    }
    this.hasStarted = true;
    // Without `100 Continue`, the client may or may not send its body.
    this.#isLastRequest ||= isLast || this.#isCloseAnnounced || this.#awaitsContinue || this.#hasNoMoreInput;
    return this.#isLastRequest;
  }

  respond(reply: Reply): void {
    if (this.isClosed || this.hasStarted) return;
    const isLast = this.#startResponse(reply.close === true || this.#body.left > MAX_DISCARDED_BYTES);
    const { body = '' } = reply;
    const length = Buffer.byteLength(body);
    const head = formatReplyHead(reply, length, isLast);
    this.#takeSink();
    this.#responseWritten(this.#writeReply(head, this.#reader.method === 'HEAD' ? '' : body));
  }

  #writeReply(head: string, body: string | Buffer): boolean {
    const socket = this.#socket;
    if (typeof body === 'string') return socket.write(head + body);
    socket.cork();
    socket.write(head, 'latin1');
    const isFlushed = socket.write(body);
    socket.uncork();
    return isFlushed;
  }

  writeHead(head: ForwardedHead, fields: ResponseFields, id: string, extra: readonly string[]): void {
    const { method, version } = this.#reader;
    const isLengthUnknown = head.framing === 'chunked' || head.framing === 'close';
    // A last chunk would prove an end that is not known; and HTTP/1.0 has no chunks.
    this.#endsByClose = head.isEndUncertain || (isLengthUnknown && version === '1.0');
    const isChunked = isLengthUnknown && !this.#endsByClose && method !== 'HEAD';
    // The rest of an incomplete body may or may not arrive.
    const isLast = this.#startResponse(this.#endsByClose || !this.#body.isComplete);
    this.#writer.writeHead(head, fields, id, extra, isChunked, isLast);
  }

  write(bytes: Buffer, start: number, end: number): boolean {
    return this.#writer.write(bytes, start, end);
  }

  flush(): boolean {
    this.#writer.flush();
    return true;
  }

  end(trailers?: readonly string[]): void {
    // RFC 9110 §6.5.1: others may discard them, or not expect them.
    this.#writer.end(this.#reader.head.acceptsTrailers ? trailers : undefined);
    this.#takeSink();
    this.#responseWritten(!this.#socket.writableNeedDrain);
  }

  /** `isFlushed`: nothing of it waits for the client. */
  #responseWritten(isFlushed: boolean): void {
    if (isFlushed) return this.#finish();
    this.#state = 'flushing';
    this.hold(this.#socket.writableLength);
    this.deadline = performance.now() + STALLED_RESPONSE_SECONDS * 1_000;
  }

  abort(): void {
    this.#state = 'closed';
    this.#endRequest(true);
    this.#destroy();
  }

  #endRequest(isAborted: boolean): void {
    if (this.#heldBytes > 0) this.hold(-this.#heldBytes);
    this.#stopProbe?.();
    this.#writer.isChunked = false;
    void this.#handler.onEnd(isAborted);
  }

  #finish(): void {
    this.#endRequest(false);
    if (this.#isLastRequest || this.#isClosing || this.#hasNoMoreInput) return this.#linger(() => this.#socket.end());
    if (this.#body.isComplete) return this.#awaitRequest();
    this.#state = 'discarding';
    this.#startDiscarding();
    const { bytes } = this.#reader;
    if (bytes === undefined) return this.#resume();
    this.#reader.consume(bytes.length);
    this.#wait(0);
    this.#resume();
    this.#readBody(bytes);
  }

  #awaitRequest(): void {
    if (this.#hasNoMoreInput) return this.#linger(() => this.#socket.end());
    this.#state = 'idle';
    this.deadline = this.#context.deadlines.deadlineIn(KEEP_ALIVE_SECONDS);
    if (this.#reader.bytes !== undefined && this.#isServing) return;
    this.#resume();
    this.#serve();
  }

  upgrade(): UpgradedConnection {
    const socket = this.#socket;
    const head = this.#reader.bytes ?? NOTHING;
    this.#reader.consume(head.length);
    this.#wait(0);
    this.#isDetached = true;
    this.#isPaused = true;
    socket.pause();
    socket.off('data', this.#onData).off('drain', this.#onDrain).off('end', this.#onEnd);
    return { socket, head, release: () => this.#release() };
  }

  #release(): void {
    this.#state = 'upgraded';
    this.#socket.allowHalfOpen = false;
  }

  /** RFC 9112 §9.6: reads and discards what the client still sends, so that a reset does not destroy the response. */
  #linger(sendLast: () => void): void {
    this.#state = 'lingering';
    this.#reader.consume(this.#reader.bytes?.length ?? 0);
    this.#wait(0);
    this.#startDiscarding();
    sendLast();
    this.#resume();
  }

  #startDiscarding(): void {
    const now = performance.now();
    this.#discarded = 0;
    this.#discardsUntil = now + DISCARD_MS;
    this.deadline = now + DISCARD_PAUSE_MS;
  }

  #discard(size: number): void {
    this.#discarded += size;
    this.deadline = Math.min(performance.now() + DISCARD_PAUSE_MS, this.#discardsUntil);
    // The connection is not closed before the client had time to read the response.
    if (this.#discarded > MAX_DISCARDED_BYTES) this.pause();
  }
}
