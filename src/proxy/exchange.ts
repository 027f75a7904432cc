import type { VerifiedToken } from '../domain/grant.ts';
import type { Downstream } from '../http/downstream.ts';
import { type GrpcCall, GrpcMessageTracker, isGrpcResponse, readGrpcStatus } from '../http/grpc.ts';
import type { RequestNotes, TransferStats } from '../http/request-context.ts';
import { METHODS_WITH_BODY } from '../http/request-head.ts';
import type { DeadlineEntry } from '../lib/deadlines.ts';
import { errorFields } from '../observability/logger.ts';
import { createBodyBuffer, mayHoldMore, STREAM_BUFFER_MS, UnreadResponse } from './body-buffering.ts';
import { BodyDeadline } from './body-deadline.ts';
import type { ProxyConfig } from './config.ts';
import {
  DeadlineError,
  isClientFault,
  logUpstreamError,
  mayRetry,
  refusalFor,
  reportEnded,
  TokenEndedError,
} from './exchange-errors.ts';
import type { LiveStream, StreamEndReason } from './policy/live-streams.ts';
import { getGrpcResult, type ProxyRefusal } from './policy/refusals.ts';
import { type AllowedRequest, getEnforcedBearer } from './policy/upstream-rewriter.ts';
import { type BodyConsumer, BodyError, type RequestBody } from './request-body.ts';
import { clientFields } from './response-fields.ts';
import { type ResponseHandler, UpstreamError } from './upstream/connection.ts';
import { Slot, type SlotHolder, type Slots } from './upstream/connection-slots.ts';
import type { Upstream } from './upstream/registry.ts';
import type { ResponseHead } from './upstream/response-head.ts';
import { type Sender, sendSoon } from './upstream/send-queue.ts';
import type { UpstreamStream } from './upstream/stream.ts';
import type { Target } from './upstream/targets.ts';

/** A request that may be forwarded. */
export interface ForwardRequest {
  readonly id: string;
  readonly method: string;
  /** Path and query, as they are sent to the upstream. */
  readonly path: string;
  /** The header section for the upstream, without `Host`, `Connection` and the framing. */
  readonly fields: string;
  /** The host that the client named. */
  readonly host: string;
  readonly rawHeaders: readonly string[];
  readonly allowed: AllowedRequest;
  /** The body, where all of it has arrived; undefined without a body. */
  readonly content: Buffer | undefined;
  /** The body, where it has not arrived completely. */
  readonly body: RequestBody | undefined;
  /** The client accepts trailers (`TE: trailers`). */
  readonly acceptsTrailers: boolean;
  readonly grpc: GrpcCall | undefined;
  /** When the client no longer waits for the result, by `performance.now()`; infinite without a deadline. */
  readonly deadline: number;
  /** Names and values of fields that are added to the response: the state of rate limits. */
  readonly limitFields: readonly string[];
  /** The client for which it uses a connection: an identity, or a network. */
  readonly shareKey: string;
  readonly config: ProxyConfig;
  readonly notes: RequestNotes;
}

/** The request that an exchange serves. */
export interface ExchangeOwner {
  /** The status of the response, for the log. */
  status: number;
  /** Sends an error response in place of the upstream's. */
  refuse(refusal: ProxyRefusal): void;
}

/**
 * - `buffering`: a part of the body must arrive before a connection is used for it.
 * - `queued`: waits for a connection slot; `scheduled`: has one, and takes a connection after pending reads.
 * - `connecting`, `sending` the body, `waiting` for the response head.
 * - `responding`: the response has begun.
 */
type Stage = 'idle' | 'buffering' | 'queued' | 'scheduled' | 'connecting' | 'sending' | 'waiting' | 'responding';

const OVERLOADED: ProxyRefusal = { reason: 'overloaded', retryAfter: 1 };
const TOO_MANY_EVENT_STREAMS: ProxyRefusal = { reason: 'too_many_event_streams', retryAfter: 5 };
/** An event stream that has sent nothing for this long is silent. */
export const SILENT_MS = 1_000;
/** CR and LF. */
const LINE_ENDS: ReadonlySet<number | undefined> = new Set([0x0d, 0x0a]);

/**
 * One request, its upstream connection and its response. It picks a target, waits for a connection slot, sends, retries,
 * enforces the deadlines and reports how it ended. An exchange serves one request after another.
 *
 * The request is reframed from what was read. Redirects are not followed. An upstream response that is aborted is aborted for
 * the client too, and when one side disconnects, the other side is closed.
 */
export class Exchange
  implements ResponseHandler, SlotHolder, BodyConsumer, LiveStream, TransferStats, DeadlineEntry, Sender
{
  deadline = Number.POSITIVE_INFINITY;
  previous: DeadlineEntry | undefined = undefined;
  next: DeadlineEntry | undefined = undefined;
  bearer: VerifiedToken | undefined = undefined;
  isEventStream = false;
  bytesOut = 0;
  upstreamSeconds: number | undefined = undefined;
  readonly #downstream: Downstream;
  readonly #slot = new Slot(this);
  readonly #unread = new UnreadResponse(() => this.#guard(() => this.#abortUnread()));
  readonly #owner: ExchangeOwner;
  /** Received of the request body, where it has arrived completely. */
  #contentBytes = 0;
  #upstream!: Upstream;
  #request!: ForwardRequest;
  #slots!: Slots;
  #stage: Stage = 'idle';
  #connection: UpstreamStream | undefined = undefined;
  #pace: BodyDeadline | undefined = undefined;
  #startedAt = 0;
  #isRetry = false;
  /** It was not forwarded as soon as it was authorized: the token is checked again before it is. */
  #hasWaited = false;
  nextSender: Sender | undefined = undefined;
  #isInSendQueue = false;
  /** The client does not read what was written. */
  #isStalled = false;
  /** Until when an event stream may pause; 0 for other responses. */
  #pausesUntil = 0;
  /** An event stream that its client opens again where it ended. */
  #isResumable = false;
  /** When a resumable stream was last read from the upstream, and whether it was at the end of a line then. */
  #lastReadAt = 0;
  #isLineComplete = true;
  /** A response of gRPC, which may be a stream. It becomes one when not all of it arrives at once. */
  #mayBeGrpcStream = false;
  /** The messages of a response of gRPC that can end with trailers. */
  #messages: GrpcMessageTracker | undefined = undefined;
  #unwatch: (() => void) | undefined = undefined;

  constructor(downstream: Downstream, owner: ExchangeOwner) {
    this.#downstream = downstream;
    this.#owner = owner;
  }

  start(upstream: Upstream, request: ForwardRequest): void {
    const { config, allowed, body } = request;
    this.#upstream = upstream;
    this.#request = request;
    this.#isRetry = false;
    this.#hasWaited = allowed.isDelayed === true;
    this.bytesOut = 0;
    this.#contentBytes = request.content?.length ?? 0;
    this.isEventStream = false;
    this.#isResumable = false;
    this.#mayBeGrpcStream = false;
    this.#messages = undefined;
    this.upstreamSeconds = undefined;
    this.#startedAt = performance.now();
    upstream.deadlines.add(this);
    this.bearer = config.endStreams === 'none' ? undefined : getEnforcedBearer(allowed);
    if (config.endStreams === 'all' && this.bearer !== undefined) this.#watch();
    if (body === undefined) this.#enqueue(upstream.targets.choose());
    else this.#bufferBody(body);
  }

  get bytesIn(): number {
    const { body } = this.#request;
    return body === undefined ? this.#contentBytes : body.received;
  }

  get isWaitingForClient(): boolean {
    // Without a connection, nothing waits for the client.
    return this.#connection?.isConnected === true && this.#request.body?.waitsForClient === true;
  }

  get unreadBytes(): number {
    return this.#downstream.unread;
  }

  /** The client has closed the connection. */
  clientClosed(): void {
    this.#unread.release();
    if (this.#stage === 'idle') return;
    this.#finish();
    this.#request.notes.reason = 'client_disconnected';
  }

  /** The client has read everything that was written. */
  clientDrained(): void {
    this.#unread.release();
    if (!this.#isStalled) return;
    this.#isStalled = false;
    this.#slot.clearStalled();
    this.#wait(this.#upstream.timeouts.idle);
    this.#connection?.resume();
  }

  /** A silent event stream. The response to another method than GET is not sent again, so that it is waited for. */
  get endsAtShutdown(): boolean {
    if (this.#stage !== 'responding' || !this.#isResumable || this.#downstream.unread > 0) return false;
    return performance.now() - this.#lastReadAt >= SILENT_MS;
  }

  end(why: StreamEndReason): void {
    const error = new TokenEndedError(why);
    // A part of an event must not look like all of it.
    if (why !== 'going_away' || !this.endsAtShutdown || !this.#isLineComplete) return this.#fail(error);
    this.#finish();
    this.#reportBroken(error);
    // Not aborted: nothing of it is missing, and clients need not report an error.
    this.#downstream.end();
  }

  onEvicted(): void {
    this.#fail(new BodyError('client_too_slow'));
  }

  #guard(handle: () => void): void {
    try {
      handle();
    } catch (error) {
      this.onInternalError(error);
    }
  }

  /** Also after the exchange has ended, as long as the client has not read all of the response. */
  #abortUnread(): void {
    if (this.#stage !== 'idle') return this.onEvicted();
    this.#request.notes.reason = 'client_too_slow';
    this.#downstream.abort(true);
  }

  onInternalError(error: unknown): void {
    if (error instanceof UpstreamError) return this.onError(error);
    const { config, id } = this.#request;
    config.log.error('internal_error', { request_id: id, ...errorFields(error) });
    this.#finish();
    if (this.#downstream.hasStarted) this.#downstream.abort(false);
    else this.#owner.refuse({ reason: 'upstream_failed' });
  }

  /** How long the body takes to arrive depends on the client. */
  #bufferBody(body: RequestBody): void {
    const { method, shareKey } = this.#request;
    const { bodyRate, bodyBuffer, isMultiplexed } = this.#upstream;
    this.#stage = 'buffering';
    this.#hasWaited = true;
    this.#pace = new BodyDeadline();
    this.#pace.start(bodyRate);
    this.#waitUntil(this.#isStream(body) ? performance.now() + STREAM_BUFFER_MS : this.#pace.deadline);
    const refuse = (): void => this.#guard(() => this.#fail(new BodyError('no_memory')));
    // A stream costs no connection while its body arrives.
    const buffer = isMultiplexed ? undefined : createBodyBuffer(method, bodyBuffer, shareKey, refuse);
    body.start(this, buffer);
  }

  /** A body of unknown length may be a stream that is meant to be forwarded as it arrives. */
  #isStream(body: RequestBody): boolean {
    return body.isLengthUnknown && METHODS_WITH_BODY.has(this.#request.method);
  }

  onBodyBuffered(): void {
    if (this.#stage === 'buffering') this.#enqueue(this.#upstream.targets.choose());
  }

  onBodyProgress(bytes: number): void {
    const body = this.#request.body as RequestBody;
    this.#pace?.extend(bytes);
    if (this.#stage === 'buffering') {
      // A stream does not wait longer because more of it arrives.
      if (!this.#isStream(body)) this.#waitForBody();
      return;
    }
    this.#slot.addBytes(bytes);
    if (body.isSent) this.#slot.markUploaded();
    this.#bodyMoved();
  }

  onBodyError(error: BodyError): void {
    if (error.kind === 'client_disconnected' && this.#downstream.isClosed) this.clientClosed();
    else this.#fail(error);
  }

  #enqueue(target: Target): void {
    const { body, shareKey } = this.#request;
    this.#slots = this.#upstream.slotsOf(target);
    this.#stage = 'queued';
    this.#wait(this.#upstream.timeouts.headers);
    const isUpload = body !== undefined && !body.isReceived;
    const isAccepted = this.#slot.enter(this.#slots, shareKey, isUpload);
    this.#hasWaited = true;
    if (!isAccepted) this.#refuse(OVERLOADED);
  }

  onSlotGranted(): void {
    const ended = this.#hasWaited ? this.#tokenFault() : undefined;
    if (ended !== undefined) return this.end(ended);
    // The response would have to wait in memory for a client that does not read others.
    if (!mayHoldMore(this.#request.shareKey)) return this.#refuse(OVERLOADED);
    this.#stage = 'scheduled';
    if (this.#isInSendQueue) return;
    this.#isInSendQueue = true;
    sendSoon(this);
  }

  send(): void {
    this.#isInSendQueue = false;
    // It has ended, or its client has closed the connection.
    if (this.#stage !== 'scheduled' || this.#downstream.isClosed) return;
    try {
      this.#send();
    } catch (error) {
      this.onInternalError(error);
    }
  }

  #send(): void {
    const { method, body } = this.#request;
    const pool = this.#upstream.poolOf(this.#slots.target);
    const connection = pool.acquire(this.#isRetry);
    const isHead = method === 'HEAD';
    // RFC 9110 §9.3.1: a server may mistake an unexpected body for the next request. None follows on this connection.
    if (this.#isRetry || isHead || (body?.isEmpty === false && !METHODS_WITH_BODY.has(method)))
      connection.closeAfterResponse();
    this.#connection = connection;
    connection.assign(this, isHead, this.#startedAt);
    if (connection.isConnected) return this.#write(connection);
    this.#stage = 'connecting';
    this.#wait(this.#upstream.timeouts.connect);
  }

  onConnected(): void {
    const connection = this.#connection;
    if (this.#stage !== 'connecting' || connection === undefined) return;
    // The token may have expired or been revoked while the connection was established.
    const ended = this.#tokenFault();
    if (ended !== undefined) return this.end(ended);
    try {
      this.#write(connection);
    } catch (error) {
      this.onInternalError(error);
    }
  }

  #write(connection: UpstreamStream): void {
    const { method, content, body } = this.#request;
    // RFC 9110 §8.6: these methods have a Content-Length even without a body.
    const framing =
      body?.isEmpty === false
        ? body.framing
        : METHODS_WITH_BODY.has(method)
          ? `content-length: ${content?.length ?? 0}\r\n`
          : '';
    if (body === undefined) connection.send(this.#request, framing, content);
    else {
      connection.cork();
      connection.sendHead(this.#request, framing);
      const takesMore = body.begin(connection);
      connection.uncork();
      // The body failed.
      if (this.#connection === undefined) return;
      body.flow(takesMore);
    }
    this.#sent();
  }

  onDrain(): void {
    const { body } = this.#request;
    if (body === undefined) return;
    this.#pace?.restartIdle();
    body.drained();
    body.flow(true);
    this.#bodyMoved();
  }

  #bodyMoved(): void {
    if (this.#stage === 'sending') this.#sent();
    // The response has begun before the request was complete: both sides may take their time.
    else if (this.#stage === 'responding') this.#wait(this.#upstream.timeouts.idle);
  }

  #sent(): void {
    const { body } = this.#request;
    const { timeouts } = this.#upstream;
    if (body === undefined || body.isSent) {
      this.#slot.markUploaded();
      this.#stage = 'waiting';
      return this.#wait(timeouts.headers);
    }
    this.#stage = 'sending';
    if (body.waitsForClient) this.#waitForBody();
    else this.#wait(timeouts.idle);
  }

  #waitForBody(): void {
    if (this.#pace !== undefined) this.#waitUntil(this.#pace.deadline);
  }

  onHead(head: ResponseHead): void {
    this.#stage = 'responding';
    this.#upstream.targets.reportSuccess(this.#slots.target);
    this.#pausesUntil = 0;
    if (head.isEventStream && !this.#startEventStream(head)) return this.#refuse(TOO_MANY_EVENT_STREAMS);
    this.upstreamSeconds = (performance.now() - this.#startedAt) / 1_000;
    if (head.status > this.#downstream.maxStatus) throw new UpstreamError('an invalid status', 'malformed_response');
    const { id, limitFields, grpc } = this.#request;
    if (grpc !== undefined) this.#startGrpcResponse(grpc, head);
    this.#owner.status = head.status;
    this.#downstream.writeHead(head, clientFields(this.#request, head), id, limitFields);
  }

  #startGrpcResponse({ isWeb }: GrpcCall, { rawHeaders, framing }: ResponseHead): void {
    this.#noteGrpcStatus(rawHeaders);
    if (!isGrpcResponse(rawHeaders)) return;
    this.#mayBeGrpcStream = true;
    // A response with a length ends when all of it was sent.
    if (!isWeb && framing !== 'length') this.#messages = new GrpcMessageTracker();
  }

  /** The result is in the trailers, or in the header section of a response without messages. */
  #noteGrpcStatus(fields: readonly string[]): void {
    const status = readGrpcStatus(fields);
    if (status !== undefined) this.#request.notes.grpcStatus = status;
  }

  /** False: there are too many, and nothing is lost when this one is refused. */
  #startEventStream({ framing }: ResponseHead): boolean {
    if (framing === 'none') return true;
    const isGet = this.#request.method === 'GET';
    if (!this.#startStream(isGet)) return false;
    this.#isResumable = isGet && framing !== 'length';
    this.#lastReadAt = performance.now();
    this.#isLineComplete = true;
    return true;
  }

  #startStream(isRefusable: boolean): boolean {
    const mayPause = this.#slot.markEventStream();
    if (!mayPause && isRefusable) return false;
    this.isEventStream = true;
    if (mayPause) this.#allowPause();
    if (this.#unwatch === undefined) this.#watch();
    return true;
  }

  onData(bytes: Buffer, start: number, end: number): boolean {
    this.bytesOut += end - start;
    this.#messages?.read(bytes, start, end);
    if (this.#isResumable) this.#isLineComplete = LINE_ENDS.has(bytes[end - 1]);
    return this.#downstream.write(bytes, start, end) || this.#mayReadAhead();
  }

  onReadEnd(): void {
    if (this.#stage !== 'responding') return;
    if (this.#mayBeGrpcStream) {
      this.#mayBeGrpcStream = false;
      this.#startStream(false);
    }
    this.#wait(this.#upstream.timeouts.idle);
    if (this.#pausesUntil > 0) this.#allowPause();
    // Deadlines are not exact enough: after a stall of the event loop, they begin too early.
    if (this.#isResumable) this.#lastReadAt = performance.now();
    if (!this.#downstream.flush() && !this.#mayReadAhead()) this.#connection?.pause();
  }

  #allowPause(): void {
    const { timeouts, deadlines } = this.#upstream;
    this.#pausesUntil = deadlines.deadlineIn(timeouts.events);
  }

  /**
   * A stream may be silent for longer than other responses, if the client has read what was sent. Only a client of gRPC may still have to
   * send a part of its request.
   */
  #mayPause(): boolean {
    if (this.#pausesUntil <= performance.now() || this.#isStalled || this.#downstream.unread > 0) return false;
    const { body, grpc } = this.#request;
    return body === undefined || body.isSent || (grpc !== undefined && body.waitsForClient);
  }

  /** The client does not keep up. A little more may be read, so that the connection is free for others. */
  #mayReadAhead(): boolean {
    if (this.#isStalled) return false;
    if (this.#unread.mayReadAhead(this.#downstream.unread, this.#request.shareKey)) return true;
    this.#isStalled = true;
    this.#slot.markStalled();
    return false;
  }

  onEnd(isKept: boolean, trailers?: readonly string[]): void {
    if (trailers !== undefined && this.#request.grpc !== undefined) this.#noteGrpcStatus(trailers);
    this.#connection = undefined;
    this.#finish(isKept);
    this.#downstream.end(trailers && this.#request.config.headers.buildResponseTrailers(trailers));
  }

  onError(error: UpstreamError): void {
    this.#connection = undefined;
    if (this.#stage !== 'responding') {
      if (error.isFailure) this.#upstream.targets.reportFailure(this.#slots.target);
      if (this.#mayRetry(error)) return this.#retry(error);
    }
    this.#fail(error);
  }

  #mayRetry(error: UpstreamError): boolean {
    const { target } = this.#slots;
    return !this.#isRetry && mayRetry(this.#request, error, () => this.#upstream.targets.hasOther(target));
  }

  #retry(error: UpstreamError): void {
    this.#slot.leave();
    this.#isRetry = true;
    logUpstreamError(this.#request, 'upstream_retried', error);
    this.#enqueue(this.#upstream.targets.chooseOther(this.#slots.target));
  }

  onTimeout(): void {
    const { body, deadline } = this.#request;
    if (deadline <= performance.now()) return this.#fail(new DeadlineError('the deadline of the call has passed'));
    switch (this.#stage) {
      case 'buffering':
        if (body !== undefined && this.#isStream(body)) return body.endBuffering();
        return this.#fail(new BodyError('client_too_slow'));
      case 'queued':
      case 'scheduled':
        return this.#refuse(OVERLOADED);
      case 'connecting':
        this.#connection?.discard();
        return this.onError(new UpstreamError('no connection in time', 'connect_timeout', { isUnreached: true }));
      case 'sending':
        return this.#fail(new BodyError(this.isWaitingForClient ? 'client_too_slow' : 'upstream_too_slow'));
      case 'waiting':
        return this.#fail(new UpstreamError('no response in time', 'response_timeout'));
      case 'responding':
        if (this.#mayPause()) {
          this.#waitUntil(
            Math.min(this.#upstream.deadlines.deadlineIn(this.#upstream.timeouts.idle), this.#pausesUntil),
          );
          return;
        }
        if (!this.#isStalled)
          return this.#fail(new UpstreamError('nothing more of the response in time', 'response_timeout'));
        if (this.#unread.hasRead(this.#downstream.unread)) return this.#wait(this.#upstream.timeouts.idle);
        return this.onEvicted();
      case 'idle':
    }
  }

  /** No response was received, or only a part of it. */
  #fail(cause: Error): void {
    if (this.#stage === 'idle') return;
    if (!this.#downstream.hasStarted) {
      const refusal = refusalFor(cause);
      if (refusal.reason.startsWith('upstream')) logUpstreamError(this.#request, 'upstream_failed', cause);
      return this.#refuse(refusal);
    }
    const trailers = this.#getGrpcTrailers(cause);
    this.#finish();
    this.#reportBroken(cause);
    if (trailers === undefined) this.#downstream.abort(isClientFault(cause));
    else this.#downstream.end(trailers);
  }

  /** A call that gatehouse ends gets its result, unless a message is incomplete or the client has not read what was sent. */
  #getGrpcTrailers(cause: Error): readonly string[] | undefined {
    if (!(cause instanceof TokenEndedError || cause instanceof DeadlineError)) return undefined;
    if (this.#messages?.isBetweenMessages !== true || this.#downstream.unread > 0) return undefined;
    const trailers = Object.entries(getGrpcResult(refusalFor(cause))).flat();
    this.#noteGrpcStatus(trailers);
    return trailers;
  }

  #reportBroken(cause: Error): void {
    const { notes } = this.#request;
    if (cause instanceof TokenEndedError) reportEnded(this.#request, cause);
    else if (cause instanceof DeadlineError) notes.reason = 'deadline_exceeded';
    else if (cause instanceof BodyError)
      notes.reason = cause.kind === 'client_too_slow' ? 'client_too_slow' : 'client_disconnected';
    else {
      notes.reason = 'upstream_aborted';
      logUpstreamError(this.#request, 'upstream_aborted', cause);
    }
  }

  #refuse(refusal: ProxyRefusal): void {
    this.#finish();
    this.#owner.refuse(refusal);
  }

  #tokenFault(): StreamEndReason | undefined {
    const { allowed, config } = this.#request;
    const bearer = getEnforcedBearer(allowed);
    return bearer && config.streams.getEndReason(bearer);
  }

  #watch(): void {
    this.#unwatch = this.#request.config.streams.add(this);
  }

  #wait(seconds: number): void {
    this.#waitUntil(this.#upstream.deadlines.deadlineIn(seconds));
  }

  #waitUntil(deadline: number): void {
    this.deadline = Math.min(deadline, this.#request.deadline);
  }

  /** `isKept`: the slot is released together with the connection, which is used again. */
  #finish(isKept = false): void {
    this.#stage = 'idle';
    this.#isStalled = false;
    this.#upstream.deadlines.remove(this);
    this.#connection?.discard();
    this.#connection = undefined;
    if (this.#request.body !== undefined) {
      this.#contentBytes = this.#request.body.received;
      this.#request.body.stop();
    }
    this.#unwatch?.();
    this.#unwatch = undefined;
    this.#slot.leave(isKept);
  }
}
