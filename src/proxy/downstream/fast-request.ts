import type { AccessRule } from '../../domain/access-rule.ts';
import type { RequestTarget } from '../../domain/request-target.ts';
import { getSingleHeader } from '../../http/raw-headers.ts';
import type { CompletedRequest, RequestNotes } from '../../http/request-context.ts';
import { resolveClientAddress, resolveRequestId } from '../../listener/client-address.ts';
import type { Exchange, ForwardRequest } from '../exchange.ts';
import { type AccessDecision, type AccessRequest, authorize, noteDecision } from '../policy/authorize.ts';
import { getCorsFields } from '../policy/cors.ts';
import type { Quota } from '../policy/quotas.ts';
import {
  createRefusalResponse,
  type EarlyResponse,
  getLogDecision,
  getLogReason,
  type ProxyRefusal,
} from '../policy/refusals.ts';
import { selectRootPage } from '../policy/root-page.ts';
import { type AllowedRequest, getUpstreamPath } from '../policy/upstream-rewriter.ts';
import type { RequestBody } from '../request-body.ts';
import type { Upstream } from '../upstream/upstream.ts';
import type { FastPathContext } from './fast-path.ts';
import type { CertificateContext, FastPathConfig } from './fast-path-config.ts';
import type { FastPeer } from './fast-peer.ts';
import type { CachedFields } from './header-cache.ts';
import type { FallbackReason } from './request-parser.ts';
import { formatFields } from './response-text.ts';

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

export type RefusedRequest = Extract<AccessDecision, { kind: 'refused' }>;

/** `undecided`: the full path decides. */
export type FastPathDecision = AccessDecision | 'undecided';

/** Reads a request from its connection, and writes the response. */
export interface FastRequestOwner {
  /** The decision that was pending. The request may have been aborted meanwhile. */
  onAuthorized(decision: FastPathDecision): void;
}

const NO_FIELDS: readonly string[] = [];

/**
 * A request on the fast path, whichever HTTP version it arrived with. Its owner calls `prepare` and `authorize`, then either
 * falls back or calls `reject`, or `takeQuota` and `forward`. After `reject` and `forward`, `finish` must follow. Then it can
 * serve another request.
 */
export class FastRequest implements CompletedRequest, CertificateContext {
  readonly peer: string;
  readonly sourceUnknown: boolean;
  readonly certificate: () => Buffer | undefined;
  id = '';
  clientAddress = '';
  notes: RequestNotes = {};
  readonly request = { method: '', url: '', rawHeaders: [] as string[] };
  /** Of the response, for the log. */
  status = 0;
  readonly #context: FastPathContext;
  readonly #peer: FastPeer;
  readonly #owner: FastRequestOwner;
  readonly #accessRequest: Mutable<AccessRequest>;
  readonly #forwarded: Mutable<ForwardRequest>;
  #config!: FastPathConfig;
  #fields!: CachedFields;
  #isAuthorizing = false;
  /** The quota is exceeded, and the rule only reports it. */
  #exceeded: ProxyRefusal | undefined = undefined;
  #arrivedAt = 0;

  constructor(context: FastPathContext, peer: FastPeer, owner: FastRequestOwner) {
    this.#context = context;
    this.#peer = peer;
    this.#owner = owner;
    this.peer = peer.address;
    this.sourceUnknown = peer.sourceUnknown;
    this.certificate = peer.certificate;
    this.#accessRequest = {
      method: '',
      url: '',
      host: '',
      credentials: { kind: 'none' },
      certificate: () => this.#config.getCertificate(this),
      clientAddress: () => this.#resolveClientAddress(),
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
  }

  /** As the exchange gets it; the same object for each request. */
  get forwarded(): ForwardRequest {
    return this.#forwarded;
  }

  /** Of the configuration that `prepare` chose. */
  get maxBodyBytes(): number {
    return this.#config.maxBodyBytes;
  }

  getUpstream(rule: AccessRule): Upstream | undefined {
    return this.#config.getUpstream(rule);
  }

  /** Everything that needs neither the token nor the body. Undefined: it may be served here. */
  prepare(method: string, target: string, fields: CachedFields): FallbackReason | undefined {
    // The pending decision would be about a mixture of both requests.
    if (this.#isAuthorizing) throw new Error('a request is still being authorized');
    const config = this.#context.getConfig();
    if (config === undefined) return 'disabled';
    if (config.isServicePath(target)) return 'service';
    if (!this.#peer.acceptsHost(config, fields.host)) return 'host';
    this.#config = config;
    this.#fields = fields;
    this.request.method = method;
    this.request.url = target;
    this.request.rawHeaders = fields.rawHeaders as string[];
    return undefined;
  }

  /** `pending`: a token is being verified, and the owner's `onAuthorized` is called. */
  authorize(): FastPathDecision | 'pending' {
    const config = this.#config;
    if (config.isCertificateAmbiguous(this)) return 'undecided';
    const accessRequest = this.#accessRequest;
    accessRequest.method = this.request.method;
    accessRequest.url = this.request.url;
    accessRequest.host = this.#fields.host;
    accessRequest.credentials = this.#fields.credentials;
    accessRequest.now = this.#context.now();
    let decision: AccessDecision | Promise<AccessDecision>;
    try {
      decision = authorize(config.policy, accessRequest);
    } catch {
      // The full path meets the same error, and reports it.
      return 'undecided';
    }
    if (!(decision instanceof Promise)) return decision;
    this.#isAuthorizing = true;
    config.retain();
    const onSettled = (settled: FastPathDecision): void => {
      this.#isAuthorizing = false;
      try {
        this.#owner.onAuthorized(settled);
      } finally {
        config.release();
      }
    };
    void decision.then(onSettled, () => onSettled('undecided'));
    return 'pending';
  }

  /** Counts the request against its quota. Undefined: it may be forwarded. */
  takeQuota(allowed: AllowedRequest): RefusedRequest | undefined {
    const quota = this.#config.quotas?.get(allowed.rule);
    const exceeded = quota && this.#takeFrom(quota, allowed);
    if (exceeded !== undefined && allowed.rule.reportOnly !== true) return refuseAllowed(allowed, exceeded);
    this.#exceeded = exceeded;
    this.#forwarded.limitFields = quota?.getFields(this.#accessRequest.now) ?? NO_FIELDS;
    return undefined;
  }

  #takeFrom(quota: Quota, { caller }: AllowedRequest): ProxyRefusal | undefined {
    const address = quota.usesAddress(caller) ? this.#resolveClientAddress() : '';
    return quota.take(caller, address, this.#accessRequest.now);
  }

  /** Begins the exchange. `content`: the whole body; `body`: one that has not arrived completely. */
  forward(
    exchange: Exchange,
    upstream: Upstream,
    allowed: AllowedRequest,
    content: Buffer | undefined,
    body: RequestBody | undefined,
  ): void {
    this.#begin(allowed);
    if (allowed.caller !== undefined) this.#peer.account.hasAuthorized = true;
    const { notes } = this;
    const wouldRefuse = allowed.wouldRefuse ?? this.#exceeded;
    notes.decision = wouldRefuse === undefined ? 'forwarded' : 'would_refuse';
    if (wouldRefuse !== undefined) notes.reason = getLogReason(wouldRefuse);
    notes.transfer = exchange;
    this.#fillForwarded(allowed);
    this.#forwarded.content = content;
    this.#forwarded.body = body;
    this.#context.onRequestStart?.(this);
    exchange.start(upstream, this.#forwarded);
  }

  /** The response to a request that is not forwarded. */
  reject(decision: RefusedRequest): EarlyResponse {
    const { refusal, rule, target, nearMisses } = decision;
    this.#begin(decision);
    this.#context.onRequestStart?.(this);
    return this.#refuse(
      refusal,
      rule,
      target,
      nearMisses === undefined ? undefined : `no_rule (${nearMisses})`,
    );
  }

  /** The response to a request that was forwarded, in place of the upstream's. */
  refuse(refusal: ProxyRefusal): EarlyResponse {
    const { rule, target } = this.#forwarded.allowed;
    return this.#refuse(refusal, rule, target);
  }

  /** Reports the end of a request that was forwarded or rejected. */
  finish(isAborted: boolean): void {
    const { now, onRequestEnd } = this.#context;
    onRequestEnd(this, { status: this.status, seconds: now() - this.#arrivedAt, aborted: isAborted });
    this.#config.release();
    // An idle connection does not keep the last body in memory.
    this.#forwarded.content = undefined;
    this.#forwarded.body = undefined;
  }

  #begin(decision: AllowedRequest | RefusedRequest): void {
    const { rawHeaders } = this.request;
    // First: `finish` follows even if anything below fails.
    this.#config.retain();
    // The status in the log if the client disconnects before the response; the same as on the full path.
    this.status = 200;
    this.#arrivedAt = this.#accessRequest.now;
    this.id = resolveRequestId(this.peer, rawHeaders, this.#peer.getTrustedProxies(this.#config));
    this.clientAddress = this.#resolveClientAddress();
    const { startSpan } = this.#context;
    const span = startSpan?.(
      getSingleHeader(rawHeaders, 'traceparent'),
      this.#peer.isTrustedProxy(this.#config),
    );
    this.notes = span === undefined ? {} : { ...span };
    noteDecision(this.notes, decision);
  }

  #resolveClientAddress(): string {
    return resolveClientAddress(
      this.peer,
      this.request.rawHeaders,
      this.#peer.getTrustedProxies(this.#config),
    );
  }

  #fillForwarded(allowed: AllowedRequest): void {
    const { rule, caller, target } = allowed;
    const config = this.#config;
    const fields = this.#fields;
    const { text, trace } = fields.upstreamFields.serialize(config.headers, fields, {
      requestId: this.id,
      peer: this.peer,
      encrypted: this.#peer.encrypted,
      isTrustedPeer: this.#peer.isTrustedProxy(config),
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
    forwarded.shareKey = caller?.bearer.identity ?? this.#peer.getNetworkKey(this.clientAddress);
    forwarded.config = config;
    forwarded.notes = this.notes;
  }

  #refuse(
    refusal: ProxyRefusal,
    rule: AccessRule | undefined,
    target: RequestTarget | undefined,
    logReason = getLogReason(refusal),
  ): EarlyResponse {
    const { realm, resourceMetadata, policy, renderRootPage } = this.#config;
    this.notes.decision = getLogDecision(refusal);
    this.notes.reason = logReason;
    return createRefusalResponse(refusal, {
      realm,
      resourceMetadata:
        target && resourceMetadata?.getUrl(target.authority ?? this.#accessRequest.host, target.path),
      proofAlgorithms: policy.proofs?.verifier.algorithms,
      requestId: this.id,
      cors: getCorsFields(rule, this.request.rawHeaders),
      page: selectRootPage(renderRootPage, refusal, target, this.request),
    });
  }
}

const refuseAllowed = ({ rule, caller }: AllowedRequest, refusal: ProxyRefusal): RefusedRequest => ({
  kind: 'refused',
  refusal,
  rule,
  ...(caller && { caller }),
});

/** Frequent refusals that leave the connection open. The full path sends the others. */
const FAST_PATH_REFUSALS: ReadonlySet<ProxyRefusal['reason']> = new Set([
  'token_missing',
  'token_invalid',
  'no_rule',
  'client_not_allowed',
  'insufficient_scope',
]);
export const isFastPathRefusal = ({ reason }: ProxyRefusal): boolean => FAST_PATH_REFUSALS.has(reason);
