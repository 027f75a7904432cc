import type { Socket } from 'node:net';
import { DISCARD_MS, DISCARD_PAUSE_MS, MAX_DISCARDED_BYTES } from '../../http/discarded-body.ts';
import type { BufferPool } from '../../lib/buffer-pool.ts';
import type { DeadlineEntry } from '../../lib/deadlines.ts';
import { closeWithStatus } from '../../listener/client-error.ts';
import type { InterceptedConnection, InterceptedSession } from '../../listener/connection-interceptor.ts';
import { type AwaitedPart, probeHalfClosed } from '../../listener/half-close.ts';
import { KEEP_ALIVE_SECONDS, STALLED_RESPONSE_SECONDS } from '../../listener/listener-options.ts';
import { getWaitingBytes, turnQueue } from '../../listener/turn-queue.ts';
import { errorFields } from '../../observability/logger.ts';
import { Exchange } from '../exchange.ts';
import type { EarlyResponse, ProxyRefusal } from '../policy/refusals.ts';
import type { AllowedRequest } from '../policy/upstream-rewriter.ts';
import { type BodySource, RequestBody } from '../request-body.ts';
import type { Upstream } from '../upstream/upstream.ts';
import type { FastPathContext } from './fast-path.ts';
import { FastPeer } from './fast-peer.ts';
import {
  type FastPathDecision,
  FastRequest,
  type FastRequestOwner,
  isFastPathRefusal,
  type RefusedRequest,
} from './fast-request.ts';
import { FastResponse } from './fast-response.ts';
import type { FallbackReason } from './request-parser.ts';
import { RequestReader } from './request-reader.ts';
import { formatEarlyResponse } from './response-text.ts';

/**
 * - `idle`: between two requests; the reader may hold the beginning of the next one.
 * - `authorizing`: a token is being verified; the request is still in the reader.
 * - `busy`: a request is being forwarded, or its response is being written.
 * - `flushing`: the response is complete, and the client has not read all of it.
 * - `lingering`: the last response was written; what the client still sends is discarded.
 * - `closed`: also after a fallback.
 */
type ConnectionState = 'idle' | 'authorizing' | 'busy' | 'flushing' | 'lingering' | 'closed';

/** How long a head may take before the full path waits for the rest of it. */
const HEAD_MS = 400;

/** A client connection on the fast path: reads requests and serves them one after another. */
export class FastConnection implements InterceptedSession, FastRequestOwner, DeadlineEntry, BodySource {
  /** By `performance.now()`. */
  deadline: number;
  previous: DeadlineEntry | undefined = undefined;
  next: DeadlineEntry | undefined = undefined;
  readonly socket: Socket;
  readonly #context: FastPathContext;
  readonly #intercepted: InterceptedConnection;
  readonly #reader: RequestReader;
  /** The current request, or the last one. */
  readonly #request: FastRequest;
  readonly #response: FastResponse;
  readonly #exchange: Exchange;
  #state: ConnectionState = 'idle';
  #isServing = false;
  /** The head of the next request has arrived, and its chunked body has not. */
  #awaitsChunks = false;
  /** Bytes of the current request's body that are still to arrive. */
  #bodyLeft = 0;
  #isPaused = false;
  /** Bytes in the reader that are charged to the client: it sends more than is served. */
  #heldBytes = 0;
  /** What has arrived is served in a later turn. */
  #isTurnAwaited = false;
  #requests = 0;
  /** The client has ended its side of the connection. */
  #isInputEnded = false;
  #isLastRequest = false;
  /** Every response from now on is the last one. */
  #isCloseAnnounced = false;
  /** Nor is another request awaited after a response that did not say so. */
  #isClosing = false;
  #discarded = 0;
  #discardsUntil = 0;
  #stopProbe: (() => void) | undefined = undefined;

  constructor(context: FastPathContext, intercepted: InterceptedConnection) {
    this.#context = context;
    this.#intercepted = intercepted;
    this.socket = intercepted.socket;
    this.#reader = new RequestReader(context.readerLimits, context.headerCache);
    this.#request = new FastRequest(context, new FastPeer(intercepted), this);
    this.#response = new FastResponse(this, this.#request.forwarded);
    this.#exchange = new Exchange(this.#response);
    this.deadline = performance.now() + context.limits.headerTimeout * 1_000;
    context.deadlines.add(this);
    intercepted.account.isIdle = () => this.#state === 'idle' && this.#reader.bytes === undefined;
    this.socket.on('data', this.#onData).on('drain', this.#onDrain);
    this.socket.on('end', this.#onEnd).on('close', this.#onClose);
  }

  announceClose(): void {
    this.#isCloseAnnounced = true;
  }

  close(): void {
    this.#isCloseAnnounced = true;
    this.#isClosing = true;
    if (this.#state === 'idle' && this.#reader.bytes === undefined) this.#linger(() => this.socket.end());
  }

  get buffers(): BufferPool {
    return this.#context.bufferPool;
  }

  /** All of the current request has arrived. */
  get isComplete(): boolean {
    return this.#bodyLeft === 0;
  }

  pause(): void {
    if (this.#isPaused) return;
    this.#isPaused = true;
    this.socket.pause();
    this.#hold(this.#reader.bytes?.length ?? 0);
  }

  #hold(bytes: number): void {
    this.#intercepted.account.add(bytes - this.#heldBytes);
    this.#heldBytes = bytes;
  }

  /** For the body of the current request. The next request is read when the response is written. */
  resume(): void {
    if (this.#bodyLeft > 0 || this.#reader.bytes === undefined) this.#resume();
  }

  #resume(): void {
    if (!this.#isPaused || this.#isTurnAwaited) return;
    this.#isPaused = false;
    if (this.#heldBytes > 0) this.#hold(0);
    this.socket.resume();
  }

  onTimeout(): void {
    // It has arrived: only the process is late.
    if (this.#isTurnAwaited) return;
    if (this.#state === 'idle' && this.#reader.bytes !== undefined)
      this.#fallBack(this.#awaitsChunks ? 'body' : 'head');
    else if (this.#state !== 'idle' || this.#requests > 0) this.#destroy();
    else this.#linger(() => closeWithStatus(this.socket, 408));
  }

  /** Closes only this connection. */
  onInternalError(error: unknown): void {
    this.#context.log.error('internal_error', { request_id: this.#request.id, ...errorFields(error) });
    this.#destroy();
  }

  /** Where only the close marks the end of the response, a reset shows that it is not complete. */
  #destroy(): void {
    const isIncomplete = this.#response.endsByClose && this.#state !== 'lingering';
    if (isIncomplete && !this.#intercepted.encrypted) this.socket.resetAndDestroy();
    else this.socket.destroy();
  }

  readonly #onData = (part: Buffer): void => this.#guard(() => this.#read(part));

  readonly #onDrain = (): void =>
    this.#guard(() => {
      this.#exchange.clientDrained();
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
    this.#exchange.clientClosed();
    if (state === 'busy' || state === 'flushing') this.#request.finish(true);
  };

  #read(part: Buffer): void {
    if (this.#state === 'busy' && this.#bodyLeft > 0) return this.#readBody(part);
    if (this.#state === 'lingering') {
      return this.#discard(part.length);
    }
    this.#reader.add(part);
    if (this.#state !== 'idle') return this.pause();
    this.#reader.countRead();
    if (this.#awaitsChunks) this.#readChunks();
    else this.#serve();
  }

  /** More of a chunked body has arrived. Its request is authorized again when all of it has: the token may have ended. */
  #readChunks(): void {
    const reason = this.#reader.readBody(this.#request.maxBodyBytes);
    if (reason !== undefined) return this.#fallBack(reason);
    if (!this.#reader.isComplete) return this.#waitForChunks();
    this.#awaitsChunks = false;
    this.#serve();
  }

  #readBody(part: Buffer): void {
    const bodyPart = part.length > this.#bodyLeft ? part.subarray(0, this.#bodyLeft) : part;
    this.#bodyLeft -= bodyPart.length;
    this.#request.forwarded.body?.push(bodyPart);
    if (bodyPart === part) return;
    // The next request. The present one may have been refused by now.
    this.#read(part.subarray(bodyPart.length));
  }

  /** The client sends nothing more, and may wait for its responses (RFC 9112 §9.6). */
  #endInput(): void {
    this.#isInputEnded = true;
    if (this.#isTurnAwaited) return;
    if (this.#state === 'idle') {
      if (this.#reader.bytes === undefined) this.socket.end();
      else this.#fallBack('head');
      return;
    }
    if (this.#reader.bytes === undefined) this.#isLastRequest = true;
    if (this.#state !== 'busy') return;
    if (this.#bodyLeft === 0) return this.#probe();
    if (this.#response.hasStarted) return this.#destroy();
    this.#request.forwarded.body?.fail('client_disconnected');
  }

  /** Restarted for each request, and stopped between two: nothing is sent while the next one is authorized. */
  #probe(): void {
    this.#stopProbe?.();
    this.#stopProbe = probeHalfClosed(this.socket, this.#getAwaitedPart);
  }

  readonly #getAwaitedPart = (): AwaitedPart => {
    if (this.#state !== 'busy') return 'other';
    if (!this.#response.hasStarted) return 'status-line';
    return this.#response.isChunked ? 'chunk' : 'other';
  };

  /** Serves all requests that have arrived, as long as they are served at once. */
  #serve(): void {
    if (this.#isServing || this.#isTurnAwaited) return;
    this.#isServing = true;
    let isOver = turnQueue.isOver;
    while (this.#state === 'idle' && !this.#awaitsChunks && this.#reader.bytes !== undefined) {
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
    this.#hold(getWaitingBytes(this.#reader.bytes?.length ?? 0, this.socket));
    turnQueue.defer(this.#intercepted.account.account, () => {
      this.#isTurnAwaited = false;
      if (this.#state !== 'idle') return false;
      this.#resume();
      this.#guard(() => this.#serve());
      return true;
    });
  }

  /** False: more must arrive first, or the full path serves it. */
  #serveNext(): boolean {
    const outcome = this.#reader.readHead(this.#isInputEnded);
    if (outcome === 'incomplete') {
      this.deadline = performance.now() + HEAD_MS;
      this.#hold(this.#reader.bytes?.length ?? 0);
      return false;
    }
    const reason = outcome === 'complete' ? this.#prepare() : outcome;
    if (reason !== undefined) {
      this.#fallBack(reason);
      return false;
    }
    this.#authorize();
    return true;
  }

  /** Undefined: the request is served here, as far as that is known without its token. */
  #prepare(): FallbackReason | undefined {
    const { method, target, fields } = this.#reader;
    return this.#request.prepare(method, target, fields) ?? this.#reader.readBody(this.#request.maxBodyBytes);
  }

  #authorize(): void {
    const decision = this.#request.authorize();
    if (decision !== 'pending') return this.#proceed(decision);
    this.#state = 'authorizing';
    this.deadline = Number.POSITIVE_INFINITY;
  }

  onAuthorized(decision: FastPathDecision): void {
    // The client may have closed the connection meanwhile.
    if (this.#state !== 'authorizing') return;
    this.#state = 'idle';
    this.#guard(() => {
      this.#proceed(decision);
      this.#serve();
    });
  }

  #proceed(decision: FastPathDecision): void {
    const { isComplete, fields } = this.#reader;
    if (decision === 'undecided') return this.#fallBack('refused');
    if (decision.kind !== 'allowed') {
      if (decision.kind === 'refused' && isFastPathRefusal(decision.refusal) && isComplete)
        this.#reject(decision);
      else this.#fallBack('refused');
      return;
    }
    const upstream = this.#request.getUpstream(decision.rule);
    if (upstream === undefined) return this.#fallBack('upstream');
    // A body that is to be forwarded as it arrives keeps its framing.
    if (fields.framing === 'chunked' && upstream.bodyBuffer === 0) return this.#fallBack('body');
    if (isComplete) return this.#forward(decision, upstream);
    if (fields.framing === 'chunked') return this.#waitForChunks();
    if (this.#isInputEnded) return this.#fallBack('framing');
    this.#forward(decision, upstream);
  }

  /** A chunked body is served here if all of it arrives soon. Otherwise it may be a stream, and takes the full path. */
  #waitForChunks(): void {
    if (!this.#reader.mayWaitForChunks || this.#isInputEnded) return this.#fallBack('body');
    // More may have arrived while the token was verified.
    this.#awaitsChunks = !this.#isPaused;
    this.#resume();
    // Until the deadlines are checked next.
    this.deadline = performance.now();
  }

  #forward(allowed: AllowedRequest, upstream: Upstream): void {
    const { isComplete, content, missing } = this.#reader;
    const refused = this.#request.takeQuota(allowed);
    if (refused !== undefined) {
      if (isComplete) this.#reject(refused);
      else this.#fallBack('refused');
      return;
    }
    this.#startRequest();
    this.#bodyLeft = missing;
    if (this.#reader.bytes === undefined && isComplete) this.#resume();
    const { contentLength } = this.#reader.fields;
    this.#request.forward(
      this.#exchange,
      upstream,
      allowed,
      isComplete && content.length > 0 ? content : undefined,
      isComplete ? undefined : new RequestBody(this, contentLength, this.#request.maxBodyBytes, content),
    );
  }

  /** Takes the request from the reader: from here on it is served here. */
  #startRequest(): void {
    this.#reader.take();
    if (this.#heldBytes > 0) this.#hold(this.#reader.bytes?.length ?? 0);
    this.#requests += 1;
    this.#state = 'busy';
    this.deadline = Number.POSITIVE_INFINITY;
    this.#isLastRequest =
      this.#reader.fields.closesConnection || (this.#isInputEnded && this.#reader.bytes === undefined);
    this.#response.reset();
    if (this.#isInputEnded) this.#probe();
  }

  #reject(refused: RefusedRequest): void {
    this.#startRequest();
    this.#writeRefusal(this.#request.reject(refused));
  }

  /** Sends an error response; nothing of the upstream's response was written. */
  refuse(refusal: ProxyRefusal): void {
    this.#writeRefusal(this.#request.refuse(refusal));
  }

  #writeRefusal(response: EarlyResponse): void {
    if (response.close) this.#isLastRequest = true;
    const isLast = this.startResponse(response.status);
    this.#response.hasStarted = true;
    const text = formatEarlyResponse(response, this.#request.request.method === 'HEAD', isLast);
    this.responseWritten(this.socket.write(text));
  }

  /** A response with this status is about to be written. True: it is the last one on this connection. */
  startResponse(status: number): boolean {
    this.#request.status = status;
    // The rest of an incomplete body may or may not arrive.
    this.#isLastRequest ||= this.#isCloseAnnounced || this.#bodyLeft > 0 || this.#response.endsByClose;
    return this.#isLastRequest;
  }

  /** The response is complete. `isFlushed`: nothing of it waits for the client. */
  responseWritten(isFlushed: boolean): void {
    this.#bodyLeft = 0;
    if (isFlushed) return this.#finish();
    this.#state = 'flushing';
    this.deadline = performance.now() + STALLED_RESPONSE_SECONDS * 1_000;
  }

  /** The response cannot be completed. */
  abort(): void {
    this.#state = 'closed';
    this.#request.finish(true);
    this.#destroy();
  }

  #finish(): void {
    this.#request.finish(false);
    this.#stopProbe?.();
    if (this.#isLastRequest || this.#isClosing) return this.#linger(() => this.socket.end());
    this.#state = 'idle';
    this.deadline = this.#context.deadlines.deadlineIn(KEEP_ALIVE_SECONDS);
    if (this.#reader.bytes !== undefined && this.#isServing) return;
    this.#resume();
    this.#serve();
  }

  /** RFC 9112 §9.6: reads and discards what the client still sends, so that a reset does not destroy the response. */
  #linger(sendLast: () => void): void {
    this.#state = 'lingering';
    this.#reader.bytes = undefined;
    const now = performance.now();
    this.#discardsUntil = now + DISCARD_MS;
    this.deadline = now + DISCARD_PAUSE_MS;
    sendLast();
    this.#resume();
  }

  #discard(size: number): void {
    this.#discarded += size;
    this.deadline = Math.min(performance.now() + DISCARD_PAUSE_MS, this.#discardsUntil);
    // The connection is not closed before the client had time to read the response.
    if (this.#discarded > MAX_DISCARDED_BYTES) this.pause();
  }

  /** Returns every byte that was not served, and gives the connection to Node's HTTP server. */
  #fallBack(reason: FallbackReason): void {
    const { socket } = this;
    const { bytes } = this.#reader;
    this.#state = 'closed';
    this.#hold(0);
    this.#stopProbe?.();
    this.#context.deadlines.remove(this);
    socket.off('data', this.#onData).off('drain', this.#onDrain);
    socket.off('end', this.#onEnd).off('close', this.#onClose);
    this.#context.onFallback(socket, reason);
    this.#reader.bytes = undefined;
    if (this.#isInputEnded) {
      // Nothing can be pushed back into a stream that has ended.
      this.#intercepted.fallBack();
      if (bytes !== undefined) socket.emit('data', bytes);
      socket.emit('end');
      return;
    }
    socket.pause();
    if (bytes !== undefined) socket.unshift(bytes);
    this.#intercepted.fallBack();
    socket.resume();
  }
}
