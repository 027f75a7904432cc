import type { Socket } from 'node:net';
import type { AccessRule } from '../../domain/access-rule.ts';
import type { RequestTarget } from '../../domain/request-target.ts';
import { getSingleHeader } from '../../http/raw-headers.ts';
import type { CompletedRequest, RequestNotes } from '../../http/request-context.ts';
import type { BufferPool } from '../../lib/buffer-pool.ts';
import type { DeadlineEntry } from '../../lib/deadlines.ts';
import {
  EMPTY_PEER_LIST,
  type PeerList,
  resolveClientAddress,
  resolveRequestId,
} from '../../listener/client-address.ts';
import { closeWithStatus } from '../../listener/client-error.ts';
import type { InterceptedConnection, InterceptedSession } from '../../listener/connection-interceptor.ts';
import { type AwaitedPart, probeHalfClosed } from '../../listener/half-close.ts';
import { KEEP_ALIVE_SECONDS, STALLED_RESPONSE_SECONDS } from '../../listener/listener-options.ts';
import { errorFields } from '../../observability/logger.ts';
import { getNetworkKey } from '../body-buffering.ts';
import { Exchange, type ForwardRequest } from '../exchange.ts';
import { type AccessDecision, type AccessRequest, authorize, noteDecision } from '../policy/authorize.ts';
import { getCorsFields } from '../policy/cors.ts';
import type { Quota } from '../policy/quotas.ts';
import { createRefusalResponse, getLogReason, type ProxyRefusal } from '../policy/refusals.ts';
import { type AllowedRequest, getUpstreamPath } from '../policy/upstream-rewriter.ts';
import { type BodySource, RequestBody } from '../request-body.ts';
import type { Upstream } from '../upstream/upstream.ts';
import type { FastPathContext } from './fast-path.ts';
import type { FastPathConfig } from './fast-path-config.ts';
import { FastResponse } from './fast-response.ts';
import type { FallbackReason } from './request-parser.ts';
import { RequestReader } from './request-reader.ts';
import { formatEarlyResponse, formatFields } from './response-text.ts';

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

/**
 * - `idle`: between two requests; the reader may hold the beginning of the next one.
 * - `authorizing`: a token is being verified; the request is still in the reader.
 * - `busy`: a request is being forwarded, or its response is being written.
 * - `flushing`: the response is complete, and the client has not read all of it.
 * - `lingering`: the last response was written; what the client still sends is discarded.
 * - `closed`: also after a fallback.
 */
type ConnectionState = 'idle' | 'authorizing' | 'busy' | 'flushing' | 'lingering' | 'closed';

const NO_FIELDS: readonly string[] = [];

/** How long a head may take before the full path waits for the rest of it. */
const HEAD_MS = 400;
const LINGER_MS = 2_000;
const LINGER_BYTES = 1_048_576;

/** A client connection on the fast path: reads requests, authorizes them and serves them one after another. */
export class FastConnection implements InterceptedSession, CompletedRequest, DeadlineEntry, BodySource {
  /** By `performance.now()`. */
  deadline: number;
  previous: DeadlineEntry | undefined = undefined;
  next: DeadlineEntry | undefined = undefined;
  readonly socket: Socket;
  readonly peer: string;
  readonly sourceUnknown: boolean;
  readonly certificate: () => Buffer | undefined;
  /** Of the current request. */
  id = '';
  clientAddress = '';
  notes: RequestNotes = {};
  readonly request = { method: '', url: '', rawHeaders: [] as string[] };
  readonly #context: FastPathContext;
  readonly #intercepted: InterceptedConnection;
  readonly #reader: RequestReader;
  readonly #accessRequest: Mutable<AccessRequest>;
  readonly #forwarded: Mutable<ForwardRequest>;
  readonly #response: FastResponse;
  readonly #exchange: Exchange;
  #config!: FastPathConfig;
  #state: ConnectionState = 'idle';
  #isServing = false;
  /** The head of the next request has arrived, and its chunked body has not. */
  #awaitsChunks = false;
  /** Bytes of the current request's body that are still to arrive. */
  #bodyLeft = 0;
  #isPaused = false;
  #requests = 0;
  #arrivedAt = 0;
  #status = 0;
  /** The client has ended its side of the connection. */
  #isInputEnded = false;
  #isLastRequest = false;
  #draining: 'no' | 'soon' | 'now' = 'no';
  #discarded = 0;
  #trustedFor: FastPathConfig | undefined = undefined;
  #isTrustedPeer = false;
  #stopProbe: (() => void) | undefined = undefined;
  #networkAddress: string | undefined = undefined;
  #networkKey = '';

  constructor(context: FastPathContext, intercepted: InterceptedConnection) {
    this.#context = context;
    this.#intercepted = intercepted;
    this.socket = intercepted.socket;
    this.peer = intercepted.peer;
    this.sourceUnknown = intercepted.sourceUnknown;
    this.certificate = intercepted.certificate;
    this.#reader = new RequestReader(context.readerLimits, context.headerCache);
    this.#accessRequest = {
      method: '',
      url: '',
      host: '',
      credentials: { kind: 'none' },
      certificate: () => this.#config.getCertificate(this),
      now: 0,
    };
    this.#forwarded = {
      id: '',
      method: '',
      path: '',
      fields: '',
      host: '',
      rawHeaders: [],
      allowed: undefined as never,
      content: undefined,
      body: undefined,
      limitFields: NO_FIELDS,
      shareKey: '',
      config: undefined as never,
      notes: this.notes,
    };
    this.#response = new FastResponse(this, this.#forwarded);
    this.#exchange = new Exchange(this.#response);
    this.deadline = performance.now() + context.limits.headerTimeout * 1_000;
    context.deadlines.add(this);
    this.socket.on('data', this.#onData).on('drain', this.#onDrain);
    this.socket.on('end', this.#onEnd).on('close', this.#onClose);
  }

  isBusy(): boolean {
    return this.#state !== 'idle' || this.#reader.bytes !== undefined;
  }

  drain(now: boolean): void {
    this.#draining = now ? 'now' : 'soon';
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
  }

  /** For the body of the current request. The next request is read when the response is written. */
  resume(): void {
    if (this.#bodyLeft > 0 || this.#reader.bytes === undefined) this.#resume();
  }

  #resume(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    this.socket.resume();
  }

  onTimeout(): void {
    if (this.#state === 'idle' && this.#reader.bytes !== undefined)
      this.#fallBack(this.#awaitsChunks ? 'body' : 'head');
    else if (this.#state !== 'idle' || this.#requests > 0) this.#destroy();
    else this.#linger(() => closeWithStatus(this.socket, 408));
  }

  /** Closes only this connection. */
  onInternalError(error: unknown): void {
    this.#context.log.error('internal_error', { request_id: this.id, ...errorFields(error) });
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
    if (state === 'busy' || state === 'flushing') this.#reportEnd(true);
  };

  #read(part: Buffer): void {
    if (this.#state === 'busy' && this.#bodyLeft > 0) return this.#readBody(part);
    if (this.#state === 'lingering') {
      this.#discarded += part.length;
      if (this.#discarded > LINGER_BYTES) this.socket.destroy();
      return;
    }
    this.#reader.add(part);
    if (this.#state !== 'idle') return this.pause();
    this.#reader.countRead();
    if (this.#awaitsChunks) this.#readChunks();
    else this.#serve();
  }

  /** More of a chunked body has arrived. Its request is authorized again when all of it has: the token may have ended. */
  #readChunks(): void {
    const reason = this.#reader.readBody(this.#config.maxBodyBytes);
    if (reason !== undefined) return this.#fallBack(reason);
    if (!this.#reader.isComplete) return this.#waitForChunks();
    this.#awaitsChunks = false;
    this.#serve();
  }

  #readBody(part: Buffer): void {
    const bodyPart = part.length > this.#bodyLeft ? part.subarray(0, this.#bodyLeft) : part;
    this.#bodyLeft -= bodyPart.length;
    this.#forwarded.body?.push(bodyPart);
    if (bodyPart === part) return;
    // The next request. The present one may have been refused by now.
    this.#read(part.subarray(bodyPart.length));
  }

  /** The client sends nothing more, and may wait for its responses (RFC 9112 §9.6). */
  #endInput(): void {
    this.#isInputEnded = true;
    if (this.#state === 'idle') {
      if (this.#reader.bytes === undefined) this.socket.end();
      else this.#fallBack('head');
      return;
    }
    if (this.#reader.bytes === undefined) this.#isLastRequest = true;
    if (this.#state !== 'busy') return;
    if (this.#bodyLeft === 0) return this.#probe();
    if (this.#response.hasStarted) return this.#destroy();
    this.#forwarded.body?.fail('client_disconnected');
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
    if (this.#isServing) return;
    this.#isServing = true;
    while (this.#state === 'idle' && !this.#awaitsChunks && this.#reader.bytes !== undefined)
      if (!this.#serveNext()) break;
    this.#isServing = false;
  }

  /** False: more must arrive first, or the full path serves it. */
  #serveNext(): boolean {
    const outcome = this.#reader.readHead(this.#isInputEnded);
    if (outcome === 'incomplete') {
      this.deadline = performance.now() + HEAD_MS;
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

  /** Everything about a request that does not need its token. Undefined: it is served here. */
  #prepare(): FallbackReason | undefined {
    const { method, target, fields } = this.#reader;
    const config = this.#context.getConfig();
    if (config === undefined) return 'disabled';
    if (config.isServicePath(target)) return 'service';
    if (this.#intercepted.isMisdirected?.(fields.host) === true) return 'host';
    if (!config.acceptsHost(fields.host, this.peer, this.socket)) return 'host';
    const reason = this.#reader.readBody(config.maxBodyBytes);
    if (reason !== undefined) return reason;
    this.#config = config;
    this.request.method = method;
    this.request.url = target;
    this.request.rawHeaders = fields.rawHeaders as string[];
    return config.isCertificateAmbiguous(this) ? 'refused' : undefined;
  }

  #authorize(): void {
    const { fields } = this.#reader;
    const accessRequest = this.#accessRequest;
    accessRequest.method = this.request.method;
    accessRequest.url = this.request.url;
    accessRequest.host = fields.host;
    accessRequest.credentials = fields.credentials;
    accessRequest.now = this.#context.now();
    const config = this.#config;
    let decision: AccessDecision | Promise<AccessDecision>;
    try {
      decision = authorize(config.policy, accessRequest);
    } catch {
      // The full path meets the same error, and reports it.
      return this.#fallBack('refused');
    }
    if (!(decision instanceof Promise)) return this.#proceed(decision);
    this.#state = 'authorizing';
    this.deadline = Number.POSITIVE_INFINITY;
    config.retain();
    const onSettled = (settled?: AccessDecision): void => {
      try {
        this.#onAuthorized(settled);
      } finally {
        config.release();
      }
    };
    void decision.then(onSettled, () => onSettled());
  }

  #onAuthorized(decision: AccessDecision | undefined): void {
    // The client may have closed the connection meanwhile.
    if (this.#state !== 'authorizing') return;
    this.#state = 'idle';
    this.#guard(() => {
      if (decision === undefined) return this.#fallBack('refused');
      this.#proceed(decision);
      this.#serve();
    });
  }

  #proceed(decision: AccessDecision): void {
    const { isComplete, fields } = this.#reader;
    if (decision.kind !== 'allowed') {
      if (decision.kind === 'refused' && isFastPathRefusal(decision.refusal) && isComplete)
        this.#reject(decision);
      else this.#fallBack('refused');
      return;
    }
    const upstream = this.#config.getUpstream(decision.rule);
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
    const quota = this.#config.quotas?.get(allowed.rule);
    const exceeded = quota && this.#takeQuota(quota, allowed);
    if (exceeded !== undefined && allowed.rule.reportOnly !== true) {
      if (isComplete) this.#reject(refuseAllowed(allowed, exceeded));
      else this.#fallBack('refused');
      return;
    }
    const wouldRefuse = allowed.wouldRefuse ?? exceeded;
    this.#forwarded.limitFields = quota?.getFields(this.#accessRequest.now) ?? NO_FIELDS;
    this.#startRequest(allowed);
    const { notes } = this;
    notes.decision = wouldRefuse === undefined ? 'forwarded' : 'would_refuse';
    if (wouldRefuse !== undefined) notes.reason = getLogReason(wouldRefuse);
    notes.transfer = this.#exchange;
    this.#bodyLeft = missing;
    if (this.#reader.bytes === undefined && isComplete) this.#resume();
    this.#fillForwarded(allowed);
    const forwarded = this.#forwarded;
    forwarded.content = isComplete && content.length > 0 ? content : undefined;
    forwarded.body = isComplete
      ? undefined
      : new RequestBody(this, this.#reader.fields.contentLength, this.#config.maxBodyBytes, content);
    this.#context.onRequestStart?.(this);
    this.#exchange.start(upstream, forwarded);
  }

  #takeQuota(quota: Quota, { caller }: AllowedRequest): ProxyRefusal | undefined {
    const address = quota.usesAddress(caller) ? this.#resolveClientAddress() : '';
    return quota.take(caller, address, this.#accessRequest.now);
  }

  #resolveClientAddress(): string {
    return resolveClientAddress(this.peer, this.request.rawHeaders, this.#getTrustedProxies());
  }

  #getTrustedProxies(): PeerList {
    return this.sourceUnknown ? EMPTY_PEER_LIST : this.#config.trustedProxies;
  }

  #fillForwarded(allowed: AllowedRequest): void {
    const { rule, caller, target } = allowed;
    const { fields } = this.#reader;
    const config = this.#config;
    const { text, trace } = fields.upstreamFields.serialize(config.headers, fields, {
      requestId: this.id,
      peer: this.peer,
      encrypted: this.#intercepted.encrypted,
      isTrustedPeer: this.#isFromTrustedProxy(),
      host: fields.host,
      forwardAuthorization: rule.forwardAuthorization,
      caller,
      trace: this.notes.trace,
    });
    this.notes.trace = trace;
    const assertion = config.rewriter.getAssertionField(allowed);
    const forwarded = this.#forwarded;
    forwarded.id = this.id;
    forwarded.method = this.request.method;
    forwarded.path = getUpstreamPath(rule, target);
    forwarded.fields = assertion.length === 0 ? text : text + formatFields(assertion);
    forwarded.host = fields.host;
    forwarded.rawHeaders = this.request.rawHeaders;
    forwarded.allowed = allowed;
    forwarded.shareKey = caller?.bearer.identity ?? this.#getNetworkKey();
    forwarded.config = config;
    forwarded.notes = this.notes;
  }

  /** Takes the request from the reader: from here on it is served here. */
  #startRequest(decision: Exclude<AccessDecision, { kind: 'asterisk' }>): void {
    const { rawHeaders } = this.request;
    this.#reader.take();
    this.#requests += 1;
    this.#state = 'busy';
    this.deadline = Number.POSITIVE_INFINITY;
    this.#isLastRequest =
      this.#reader.fields.closesConnection || (this.#isInputEnded && this.#reader.bytes === undefined);
    // The status in the log if the client disconnects before the response; the same as on the full path.
    this.#status = 200;
    this.#response.reset();
    this.#arrivedAt = this.#accessRequest.now;
    this.id = resolveRequestId(this.peer, rawHeaders, this.#getTrustedProxies());
    this.clientAddress = this.#resolveClientAddress();
    const { startSpan } = this.#context;
    const span = startSpan?.(getSingleHeader(rawHeaders, 'traceparent'), this.#isFromTrustedProxy());
    this.notes = span === undefined ? {} : { ...span };
    noteDecision(this.notes, decision);
    this.#config.retain();
    if (this.#isInputEnded) this.#probe();
  }

  #isFromTrustedProxy(): boolean {
    if (this.#trustedFor !== this.#config) {
      this.#trustedFor = this.#config;
      this.#isTrustedPeer = !this.sourceUnknown && this.#config.isTrustedPeer(this.peer);
    }
    return this.#isTrustedPeer;
  }

  /** Requests without a token share connections by the network of their client. */
  #getNetworkKey(): string {
    if (this.#networkAddress !== this.clientAddress) {
      this.#networkAddress = this.clientAddress;
      this.#networkKey = getNetworkKey(this.clientAddress);
    }
    return this.#networkKey;
  }

  #reject(decision: Extract<AccessDecision, { kind: 'refused' }>): void {
    const { refusal, rule, target, nearMisses } = decision;
    this.#startRequest(decision);
    this.#context.onRequestStart?.(this);
    this.#refuse(refusal, rule, target, nearMisses === undefined ? undefined : `no_rule (${nearMisses})`);
  }

  /** Sends an error response; nothing of the upstream's response was written. */
  refuse(refusal: ProxyRefusal): void {
    const { rule, target } = this.#forwarded.allowed;
    this.#refuse(refusal, rule, target);
  }

  #refuse(
    refusal: ProxyRefusal,
    rule: AccessRule | undefined,
    target: RequestTarget | undefined,
    logReason = getLogReason(refusal),
  ): void {
    const { realm, resourceMetadata } = this.#config;
    this.notes.decision = 'refused';
    this.notes.reason = logReason;
    const response = createRefusalResponse(refusal, {
      realm,
      resourceMetadata:
        target && resourceMetadata?.getUrl(target.authority ?? this.#accessRequest.host, target.path),
      proofAlgorithms: this.#config.policy.proofs?.verifier.algorithms,
      requestId: this.id,
      cors: getCorsFields(rule, this.request.rawHeaders),
    });
    if (response.close) this.#isLastRequest = true;
    const isLast = this.startResponse(response.status);
    this.#response.hasStarted = true;
    const text = formatEarlyResponse(response, this.request.method === 'HEAD', isLast);
    this.responseWritten(this.socket.write(text));
  }

  /** A response with this status is about to be written. True: it is the last one on this connection. */
  startResponse(status: number): boolean {
    this.#status = status;
    // The rest of an incomplete body may or may not arrive.
    this.#isLastRequest ||= this.#draining !== 'no' || this.#bodyLeft > 0 || this.#response.endsByClose;
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
    this.#reportEnd(true);
    this.#destroy();
  }

  #finish(): void {
    this.#reportEnd(false);
    this.#stopProbe?.();
    if (this.#isLastRequest || this.#draining === 'now') return this.#linger(() => this.socket.end());
    this.#state = 'idle';
    this.deadline = this.#context.deadlines.deadlineIn(KEEP_ALIVE_SECONDS);
    if (this.#reader.bytes !== undefined && this.#isServing) return;
    this.#resume();
    this.#serve();
  }

  #reportEnd(isAborted: boolean): void {
    const { now, onRequestEnd } = this.#context;
    onRequestEnd(this, { status: this.#status, seconds: now() - this.#arrivedAt, aborted: isAborted });
    this.#config.release();
    // An idle connection does not keep the last body in memory.
    this.#forwarded.content = undefined;
    this.#forwarded.body = undefined;
  }

  /** RFC 9112 §9.6: reads and discards what the client still sends, so that a reset does not destroy the response. */
  #linger(sendLast: () => void): void {
    this.#state = 'lingering';
    this.#reader.bytes = undefined;
    this.deadline = performance.now() + LINGER_MS;
    sendLast();
    this.#resume();
  }

  /** Returns every byte that was not served, and gives the connection to Node's HTTP server. */
  #fallBack(reason: FallbackReason): void {
    const { socket } = this;
    const { bytes } = this.#reader;
    this.#state = 'closed';
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

const refuseAllowed = ({ rule, caller }: AllowedRequest, refusal: ProxyRefusal) =>
  ({ kind: 'refused', refusal, rule, ...(caller && { caller }) }) as const;

/** Frequent refusals that leave the connection open. The full path sends the others. */
const FAST_PATH_REFUSALS: ReadonlySet<ProxyRefusal['reason']> = new Set([
  'token_missing',
  'token_invalid',
  'no_rule',
  'client_not_allowed',
  'insufficient_scope',
]);
const isFastPathRefusal = ({ reason }: ProxyRefusal): boolean => FAST_PATH_REFUSALS.has(reason);
