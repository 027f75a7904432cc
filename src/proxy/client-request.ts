import type { AccessRule } from '../domain/access-rule.ts';
import { isAllowedOrigin } from '../domain/cors.ts';
import type { Epoch } from '../domain/grant.ts';
import type { RequestTarget } from '../domain/request-target.ts';
import type { BodySink, Downstream, RequestHandler } from '../http/downstream.ts';
import { createGrpcResult, GRPC_STATUS, type GrpcCall, getGrpcMethod, getGrpcStatus } from '../http/grpc.ts';
import { formatFields, getHeaderValues, getSingleHeader } from '../http/raw-headers.ts';
import type { Reply } from '../http/reply.ts';
import type { CompletedRequest, RequestNotes, RequestOutcome } from '../http/request-context.ts';
import { checkMethod, type HttpVersion, METHODS_WITH_BODY, type RequestHead } from '../http/request-head.ts';
import { ReceivedRequest, ServiceRequest } from '../http/service-request.ts';
import { EMPTY_PEER_LIST, type PeerList, resolveClientAddress, resolveRequestId } from '../listener/client-address.ts';
import type { ClientConnection } from '../listener/listener-options.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import type { SpanContext } from '../observability/tracing.ts';
import { getNetworkKey } from './body-buffering.ts';
import type { CertificateContext, RequestConfig } from './config.ts';
import { type DerivedFields, getDerivedFields } from './derived-fields.ts';
import { Exchange, type ExchangeOwner, type ForwardRequest } from './exchange.ts';
import { type AccessDecision, type AccessRequest, authorize, findRule, noteDecision } from './policy/authorize.ts';
import { getCorsFields, getOriginHeader, type Preflight, readPreflight } from './policy/cors.ts';
import { readPresentedProof } from './policy/credentials.ts';
import {
  AMBIGUOUS_CERTIFICATE,
  createRefusalReply,
  getLogDecision,
  getLogReason,
  type ProxyRefusal,
  type RefusalOptions,
  refuseUndecided,
  SUPPORTED_METHODS,
} from './policy/refusals.ts';
import { getForwardAuthStatus } from './policy/request-check.ts';
import { selectRootPage } from './policy/root-page.ts';
import { type AllowedRequest, getUpstreamPath } from './policy/upstream-rewriter.ts';
import { RequestBody } from './request-body.ts';
import type { UpstreamHandle } from './upstream/registry.ts';
import { isWebSocketHandshake, requestsWebSocket, WebSocketForward } from './websocket-forward.ts';

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

/** What all requests share. */
export interface RequestEnvironment {
  /** Characters of a request target. */
  readonly maxTargetLength: number;
  /** The present configuration. */
  readonly getConfig: () => RequestConfig;
  /** A request has begun; `onRequestEnd` follows. */
  readonly onRequestStart: (request: CompletedRequest) => void;
  readonly onRequestEnd: (request: CompletedRequest, outcome: RequestOutcome) => void;
  /** Starts a span where the request is recorded. `isTrusted`: a trusted proxy sent this traceparent. */
  readonly startSpan?: ((traceparent: string | undefined, isTrusted: boolean) => SpanContext | undefined) | undefined;
  readonly log: Logger;
  readonly now: () => Epoch;
}

/** What is known of a request that is refused. */
interface RefusedRequest {
  readonly rule?: AccessRule | undefined;
  readonly target?: RequestTarget | undefined;
}

const NO_FIELDS: readonly string[] = [];
const NOTHING_KNOWN: RefusedRequest = {};
const NOTHING = Buffer.alloc(0);
/** The objects of a request that gatehouse serves itself. */
const SERVICE_REQUEST_BYTES = 4_096;
/** It was checked before; what is written to a connection is checked once more. */
const UPSTREAM_PATH = /^\/[\x21-\x7e]*$/;
const INVALID_PATH: ProxyRefusal = { reason: 'malformed', detail: 'an invalid request target' };

/**
 * A request, from its head to its log line: begun, served by gatehouse itself or authorized and forwarded, and recorded at its end. One
 * object serves the requests of a connection, or of its streams, one after another.
 */
export class ClientRequest implements RequestHandler, CompletedRequest, CertificateContext, BodySink, ExchangeOwner {
  readonly peer: string;
  readonly sourceUnknown: boolean;
  readonly certificate: () => Buffer | undefined;
  id = '';
  clientAddress = '';
  notes: RequestNotes = {};
  readonly request = { method: '', url: '', rawHeaders: [] as readonly string[] };
  /** The status of the response, for the log. */
  status = 0;
  readonly #environment: RequestEnvironment;
  readonly #connection: ClientConnection;
  readonly #downstream: Downstream;
  readonly #exchange: Exchange;
  readonly #accessRequest: Mutable<AccessRequest>;
  readonly #forwarded: Mutable<ForwardRequest>;
  #config!: RequestConfig;
  #head!: RequestHead;
  #fields!: DerivedFields;
  #version: HttpVersion = '1.1';
  /** It is undefined if the request is no call of gRPC. */
  #grpc: GrpcCall | undefined = undefined;
  #arrivedAt = 0;
  /** The quota is exceeded, and the rule only reports it. */
  #exceeded: ProxyRefusal | undefined = undefined;
  #service: ServiceRequest | undefined = undefined;
  #webSocket: WebSocketForward | undefined = undefined;
  /** A token is being verified, or a handler is running. */
  #pending: Promise<unknown> | undefined = undefined;
  #isEnded = true;
  #trustedFor: RequestConfig | undefined = undefined;
  #isTrusted = false;
  #networkAddress: string | undefined = undefined;
  #networkKey = '';

  constructor(environment: RequestEnvironment, connection: ClientConnection, downstream: Downstream) {
    this.#environment = environment;
    this.#connection = connection;
    this.#downstream = downstream;
    this.#exchange = new Exchange(downstream, this);
    this.peer = connection.peer;
    this.sourceUnknown = connection.sourceUnknown;
    this.certificate = connection.certificate;
    this.#accessRequest = {
      method: '',
      url: '',
      host: '',
      credentials: { kind: 'none' },
      certificate: () => this.#config.getCertificate(this),
      proof: () => readPresentedProof(this, this.#config.isTrustedPeer),
      clientAddress: () => this.clientAddress,
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
      acceptsTrailers: false,
      grpc: undefined,
      deadline: Number.POSITIVE_INFINITY,
      limitFields: NO_FIELDS,
      shareKey: '',
      config: undefined as never,
      notes: this.notes,
    };
  }

  handle(method: string, target: string, version: HttpVersion, head: RequestHead): void {
    this.#begin(method, target, version, head);
    try {
      this.#dispatch();
    } catch (error) {
      this.#fail(error);
    }
  }

  #begin(method: string, target: string, version: HttpVersion, head: RequestHead): void {
    const { getConfig, now, startSpan, onRequestStart } = this.#environment;
    const config = getConfig();
    const { request } = this;
    this.#config = config;
    this.#head = head;
    this.#version = version;
    this.#isEnded = false;
    // First: `onEnd` follows even if anything below fails.
    config.retain();
    request.method = method;
    request.url = target;
    request.rawHeaders = head.rawHeaders;
    // The status in the log if the client disconnects before the response.
    this.status = 200;
    this.#arrivedAt = now();
    const trusted = this.#trustedProxies;
    this.id = resolveRequestId(this.peer, head.rawHeaders, trusted);
    this.clientAddress = resolveClientAddress(this.peer, head.rawHeaders, trusted);
    const span = startSpan?.(getSingleHeader(head.rawHeaders, 'traceparent'), this.#isTrustedPeer);
    this.notes = span === undefined ? {} : { ...span };
    this.#grpc = head.grpc === undefined ? undefined : this.#readCall(head.grpc);
    onRequestStart(this);
  }

  /**
   * A refused call gets status 200. A gateway that asks about a call sends the same content type, and must get no such response, so that
   * requests for gatehouse itself are no calls.
   */
  #readCall(call: GrpcCall): GrpcCall | undefined {
    const { method, url } = this.request;
    if (method !== 'POST' || !url.startsWith('/') || this.#config.isServiceTarget(url)) return undefined;
    const grpcMethod = getGrpcMethod(url);
    if (grpcMethod !== undefined) this.notes.grpcMethod = grpcMethod;
    return call;
  }

  /** Decides what a request is: refused, served by gatehouse itself, or proxied. */
  #dispatch(): void {
    const { method, url } = this.request;
    const refusal =
      this.#checkConnection(url) ??
      this.#head.refusal ??
      checkMethod(method) ??
      (url.length > this.#environment.maxTargetLength ? ({ reason: 'target_too_long' } as const) : undefined);
    if (refusal !== undefined) return this.#refuseHead(refusal);
    if (this.#config.isServiceTarget(url) && this.#serve()) return;
    this.#proxy();
  }

  #refuseHead(refusal: ProxyRefusal): void {
    if (!this.#config.isForwardAuth(this.request.url)) return this.refuse(refusal);
    // The gateway's own request is malformed, and gateways understand few statuses.
    this.refuse(refusal, NOTHING_KNOWN, undefined, { status: getForwardAuthStatus(refusal), close: true });
  }

  /** Whether the Host field or an absolute-form target names a host that needs another connection. */
  #checkConnection(url: string): ProxyRefusal | undefined {
    const { isMisdirected } = this.#connection;
    if (isMisdirected === undefined) return undefined;
    const [, authority = ''] = /^[a-z][a-z0-9+.-]*:\/\/(?:[^/?#@]*@)?([^/?#]*)/i.exec(url) ?? [];
    return [...getHeaderValues(this.#head.rawHeaders, 'host'), authority].some(isMisdirected)
      ? { reason: 'misdirected_connection' }
      : undefined;
  }

  /** Returns false if it is not a request for gatehouse. */
  #serve(): boolean {
    // Streams of HTTP/2 are refused before they are served.
    if (this.#version !== '2' && !this.#connection.account.mayGrow) {
      this.refuse({ reason: 'too_many_requests_open', retryAfter: 1 });
      return true;
    }
    const service = this.#createServiceRequest();
    const reply = this.#config.serve(service);
    if (reply === undefined) return false;
    this.#service = service;
    this.#downstream.hold(SERVICE_REQUEST_BYTES);
    if (!(reply instanceof Promise)) {
      this.#respond(reply);
      return true;
    }
    this.#pending = reply.then(
      (settled) => this.#settle(service, () => this.#respond(settled)),
      (error: unknown) => this.#settle(service, () => this.#fail(error)),
    );
    return true;
  }

  #createServiceRequest(): ServiceRequest {
    const { method, url } = this.request;
    const request = new ReceivedRequest(method, url, this.#version, this.#head);
    const { id, peer, sourceUnknown, clientAddress, certificate, notes } = this;
    return new ServiceRequest(
      {
        request,
        id,
        arrivedAt: this.#arrivedAt,
        peer,
        sourceUnknown,
        local: this.#connection.socket,
        clientAddress,
        certificate,
        notes,
      },
      this.#downstream,
    );
  }

  /** The client may have closed the connection, and another request may have begun. */
  #settle(service: ServiceRequest, respond: () => void): void {
    if (this.#service !== service) return;
    this.#pending = undefined;
    try {
      respond();
    } catch (error) {
      this.onInternalError(error);
      this.#downstream.abort(false);
    }
  }

  #respond(reply: Reply): void {
    this.status = reply.loggedStatus ?? reply.status;
    this.#downstream.respond(reply);
  }

  /** An unexpected error ends one request only; its id is in the log and in the response. */
  #fail(error: unknown): void {
    this.onInternalError(error);
    if (this.#downstream.hasStarted) return this.#downstream.abort(false);
    const grpc = this.#grpc;
    if (grpc !== undefined) {
      this.notes.grpcStatus = GRPC_STATUS.internal;
      const result = createGrpcResult(GRPC_STATUS.internal, 'Internal error. Try again.');
      const headers = { 'content-type': grpc.contentType, ...result, 'x-request-id': this.id };
      return this.#respond({ status: 200, loggedStatus: 500, headers, close: true });
    }
    this.#respond({
      status: 500,
      headers: { 'content-type': 'application/json', 'cache-control': 'no-store' },
      body: JSON.stringify({
        error: 'server_error',
        error_description: 'Internal error. Try again.',
        request_id: this.id,
      }),
      close: true,
    });
  }

  #proxy(): void {
    const config = this.#config;
    const head = this.#head;
    const { policy } = config;
    // RFC 9112 §3.2.2: an absolute request target overrides the Host field.
    if (this.request.url.startsWith('/') && !config.acceptsHost(head.host, this.peer, this.#connection.socket))
      return this.refuse({ reason: 'misdirected' });
    // A service worker of the API could replace the confirmation pages of the same origin.
    if (head.isServiceWorkerScript && policy.pagesHost === undefined)
      return this.refuse({ reason: 'service_worker_script' });
    if (config.isCertificateAmbiguous(this)) return this.refuse(AMBIGUOUS_CERTIFICATE);
    if (this.request.method === 'OPTIONS') {
      const preflight = readPreflight(policy, this.request, head);
      if (preflight !== undefined) return this.#respondToPreflight(preflight);
    }
    this.#authorize();
  }

  #respondToPreflight({ rule, fields }: Preflight): void {
    this.notes.rule = rule.name;
    if (fields === undefined) return this.refuse({ reason: 'origin_not_allowed' }, { rule });
    this.notes.decision = 'handled';
    this.notes.reason = 'preflight';
    this.#respond({
      status: 204,
      headers: { 'cache-control': 'no-store', ...fields, 'X-Request-Id': this.id },
    });
  }

  #authorize(): void {
    this.#fields = getDerivedFields(this.#head);
    const accessRequest = this.#accessRequest;
    accessRequest.method = this.request.method;
    accessRequest.url = this.request.url;
    accessRequest.host = this.#head.host;
    accessRequest.credentials = this.#fields.credentials;
    accessRequest.now = this.#arrivedAt;
    let decision: AccessDecision | Promise<AccessDecision>;
    try {
      decision = authorize(this.#config.policy, accessRequest);
    } catch (error) {
      return this.#refuseUndecided(error);
    }
    if (!(decision instanceof Promise)) return this.#proceed(decision);
    this.#pending = decision.then(
      (settled) => this.#onAuthorized(() => this.#proceed(settled)),
      (error: unknown) => this.#onAuthorized(() => this.#refuseUndecided(error)),
    );
  }

  #onAuthorized(proceed: () => void): void {
    this.#pending = undefined;
    // The client may have closed the connection while its token was verified.
    if (this.#isEnded) return;
    try {
      proceed();
    } catch (error) {
      this.#fail(error);
    }
  }

  #refuseUndecided(error: unknown): void {
    const { method, url } = this.request;
    const matched = findRule(this.#config.policy, { method, url, host: this.#head.host });
    this.#config.reportFailure(this.id, error);
    noteDecision(this.notes, matched);
    this.refuse(refuseUndecided(error), matched);
  }

  #proceed(decision: AccessDecision): void {
    if (decision.kind === 'asterisk') {
      this.notes.decision = 'handled';
      this.notes.reason = 'asterisk';
      return this.#respond({ status: 204, headers: { allow: SUPPORTED_METHODS } });
    }
    noteDecision(this.notes, decision);
    if (decision.kind === 'allowed') return this.#forward(decision);
    const { refusal, nearMisses } = decision;
    this.refuse(refusal, decision, nearMisses && `no_rule (${nearMisses})`);
  }

  #forward(allowed: AllowedRequest): void {
    this.#forwarded.allowed = allowed;
    const handle = this.#config.getUpstream(allowed.rule);
    const refusal =
      this.#checkForwarded(allowed) ??
      (handle === undefined ? ({ reason: 'upstream_failed' } as const) : this.#takeQuota(allowed));
    if (refusal !== undefined || handle === undefined)
      return this.refuse(refusal ?? { reason: 'upstream_failed' }, allowed);
    if (allowed.caller !== undefined) this.#downstream.markAuthorized();
    const wouldRefuse = allowed.wouldRefuse ?? this.#exceeded;
    this.notes.decision = wouldRefuse === undefined ? 'forwarded' : 'would_refuse';
    if (wouldRefuse !== undefined) this.notes.reason = getLogReason(wouldRefuse);
    if (this.#isUpgrade) return this.#forwardWebSocket(handle, allowed);
    this.#fillForwarded(allowed);
    if (!UPSTREAM_PATH.test(this.#forwarded.path)) return this.refuse(INVALID_PATH, allowed);
    if (!this.#downstream.isComplete && !this.#takeBody()) return this.refuse({ reason: 'body_too_large' }, allowed);
    if (this.#forwarded.deadline <= performance.now()) return this.refuse({ reason: 'deadline_exceeded' }, allowed);
    this.notes.transfer = this.#exchange;
    this.#exchange.start(handle.upstream, this.#forwarded);
  }

  get #isUpgrade(): boolean {
    return this.#head.upgrade !== undefined && isWebSocketHandshake(this.request.method, this.#version, this.#head);
  }

  #checkForwarded({ rule }: AllowedRequest): ProxyRefusal | undefined {
    const head = this.#head;
    if ((head.contentLength ?? 0) > this.#config.maxBodyBytes) return { reason: 'body_too_large' };
    if (head.upgrade === undefined) return undefined;
    const isUpgrade = this.#isUpgrade;
    if (isUpgrade ? rule.websocket !== true : requestsWebSocket(head)) return { reason: 'upgrade_not_allowed' };
    // Browsers send no preflight before they open a WebSocket (RFC 6455 §10.2).
    const origin = isUpgrade ? getOriginHeader(head.rawHeaders) : undefined;
    return rule.cors !== undefined && origin !== undefined && !isAllowedOrigin(rule.cors, origin)
      ? { reason: 'origin_not_allowed' }
      : undefined;
  }

  /** Counts the request against its quota. Undefined: it may be forwarded. */
  #takeQuota(allowed: AllowedRequest): ProxyRefusal | undefined {
    const quota = this.#config.quotas?.get(allowed.rule);
    this.#exceeded = undefined;
    this.#forwarded.limitFields = NO_FIELDS;
    if (quota === undefined) return undefined;
    const exceeded = quota.take(allowed.caller, this.clientAddress, this.#arrivedAt);
    if (exceeded !== undefined && allowed.rule.reportOnly !== true) return exceeded;
    this.#exceeded = exceeded;
    this.#forwarded.limitFields = quota.getFields(this.#arrivedAt);
    return undefined;
  }

  /** Returns false if the body has arrived and is too large. */
  #takeBody(): boolean {
    const { maxBodyBytes } = this.#config;
    const forwarded = this.#forwarded;
    const downstream = this.#downstream;
    const received = downstream.takeBody(this) ?? NOTHING;
    const isAll = downstream.isComplete;
    if (isAll && received.length > maxBodyBytes) return false;
    const mayHaveBody = METHODS_WITH_BODY.has(forwarded.method);
    const trailers = isAll ? this.#getTrailers() : undefined;
    if (isAll && trailers === undefined && (mayHaveBody || received.length === 0)) {
      forwarded.content = mayHaveBody ? received : undefined;
      return true;
    }
    const body = new RequestBody(downstream, this.#head.contentLength, maxBodyBytes);
    body.setFirst(received, isAll, trailers);
    forwarded.body = body;
    return true;
  }

  push(part: Buffer): void {
    this.#forwarded.body?.push(part);
  }

  end(): void {
    this.#forwarded.body?.end(this.#getTrailers());
  }

  /** The trailers for the upstream. They need chunks, so that those of other framings and methods are not forwarded. */
  #getTrailers(): readonly string[] | undefined {
    const { trailers } = this.#downstream;
    if (trailers === undefined || this.#head.contentLength !== undefined) return undefined;
    return METHODS_WITH_BODY.has(this.request.method) ? this.#config.headers.buildRequestTrailers(trailers) : undefined;
  }

  abort(): void {
    this.#forwarded.body?.abort();
  }

  #fillForwarded(allowed: AllowedRequest): void {
    const { rule, caller, target } = allowed;
    const config = this.#config;
    const head = this.#head;
    const { text, trace } = this.#fields.upstream.serialize(config.headers, head, this.#getForwardInfo(allowed));
    this.notes.trace = trace;
    const assertion = config.rewriter.getAssertionField(allowed);
    const forwarded = this.#forwarded;
    forwarded.id = this.id;
    forwarded.method = this.request.method;
    forwarded.path = getUpstreamPath(rule, target);
    forwarded.fields = assertion.length === 0 ? text : text + formatFields(assertion);
    forwarded.host = target.authority ?? head.host;
    forwarded.rawHeaders = head.rawHeaders;
    forwarded.acceptsTrailers = head.acceptsTrailers;
    forwarded.grpc = this.#grpc;
    forwarded.deadline = this.#getDeadline();
    forwarded.shareKey = caller?.bearer.identity ?? this.#getNetworkKey();
    forwarded.config = config;
    forwarded.notes = this.notes;
  }

  /** By `performance.now()`. The time since the request has arrived counts. */
  #getDeadline(): number {
    const timeout = this.#grpc?.timeout;
    if (timeout === undefined) return Number.POSITIVE_INFINITY;
    return performance.now() + (timeout - this.#environment.now() + this.#arrivedAt) * 1_000;
  }

  #getForwardInfo({ rule, caller, target }: AllowedRequest) {
    return {
      requestId: this.id,
      peer: this.peer,
      encrypted: this.#connection.encrypted,
      isTrustedPeer: this.#isTrustedPeer,
      host: target.authority ?? this.#head.host,
      forwardAuthorization: rule.forwardAuthorization,
      caller,
      trace: this.notes.trace,
    };
  }

  #forwardWebSocket(handle: UpstreamHandle, allowed: AllowedRequest): void {
    const { headers, rewriter } = this.#config;
    const head = this.#head;
    const { list, trace } = headers.buildRequestHeaders(head.rawHeaders, head, this.#getForwardInfo(allowed));
    list.push(...rewriter.getAssertionField(allowed));
    this.notes.trace = trace;
    const request = {
      config: this.#config,
      allowed,
      id: this.id,
      host: allowed.target.authority ?? head.host,
      rawHeaders: head.rawHeaders,
      shareKey: allowed.caller?.bearer.identity ?? this.#getNetworkKey(),
      notes: this.notes,
    };
    this.#webSocket = new WebSocketForward(this.#downstream, this, request, handle.tunnels);
    this.#webSocket.start(list);
  }

  /** Sends an error response; nothing of another response was written. */
  refuse(
    refusal: ProxyRefusal,
    { rule, target }: RefusedRequest = this.#forwarded.allowed ?? NOTHING_KNOWN,
    logReason = getLogReason(refusal),
    override?: RefusalOptions['override'],
  ): void {
    const { resourceMetadata, policy, renderRootPage } = this.#config;
    this.notes.decision = getLogDecision(refusal);
    this.notes.reason = logReason;
    const grpc = this.#grpc;
    const reply = createRefusalReply(refusal, {
      resourceMetadata: target && resourceMetadata?.getUrl(target.authority ?? this.#head.host, target.path),
      proofAlgorithms: policy.proofs?.verifier.algorithms,
      requestId: this.id,
      ...(override && { override }),
      cors: getCorsFields(rule, this.request.rawHeaders),
      page: grpc === undefined ? selectRootPage(renderRootPage, refusal, target, this.request) : undefined,
      grpc,
    });
    if (grpc !== undefined) this.notes.grpcStatus = getGrpcStatus(reply.loggedStatus ?? reply.status);
    // The client may have sent frames already, which would be read as the next request.
    this.#respond(this.#isUpgrade ? { ...reply, close: true } : reply);
  }

  onDrain(): void {
    this.#exchange.clientDrained();
    this.#webSocket?.onDrain();
  }

  onEnd(isAborted: boolean): Promise<unknown> | undefined {
    if (this.#isEnded) return this.#pending;
    this.#isEnded = true;
    if (isAborted) this.#exchange.clientClosed();
    // Nothing is read ahead for this client any more.
    else this.#exchange.clientDrained();
    this.#webSocket?.onEnd();
    this.#webSocket = undefined;
    this.#service?.detach();
    this.#service = undefined;
    const { now, onRequestEnd } = this.#environment;
    onRequestEnd(this, { status: this.status, seconds: now() - this.#arrivedAt, aborted: isAborted });
    this.#config.release();
    // An idle connection does not keep the last body in memory.
    const forwarded = this.#forwarded;
    forwarded.content = undefined;
    forwarded.body = undefined;
    forwarded.allowed = undefined as never;
    const pending = this.#pending;
    this.#pending = undefined;
    return pending;
  }

  onInternalError(error: unknown): void {
    this.#environment.log.error('internal_error', { request_id: this.id, ...errorFields(error) });
  }

  /** The proxies whose forwarded headers are trusted on this connection. */
  get #trustedProxies(): PeerList {
    return this.sourceUnknown ? EMPTY_PEER_LIST : this.#config.trustedProxies;
  }

  get #isTrustedPeer(): boolean {
    if (this.#trustedFor !== this.#config) {
      this.#trustedFor = this.#config;
      this.#isTrusted = !this.sourceUnknown && this.#config.isTrustedPeer(this.peer);
    }
    return this.#isTrusted;
  }

  /** Requests without a token share connections by the network of their client. */
  #getNetworkKey(): string {
    if (this.#networkAddress !== this.clientAddress) {
      this.#networkAddress = this.clientAddress;
      this.#networkKey = getNetworkKey(this.clientAddress);
    }
    return this.#networkKey;
  }
}
