import type { AccessRule } from '../../domain/access-rule.ts';
import { getHeaderValues } from '../../http/raw-headers.ts';
import type { Reply } from '../../http/reply.ts';
import type { RequestContext, RequestNotes } from '../../http/request-context.ts';
import type { RequestHead } from '../../http/request-head.ts';
import { createFailureReporter } from '../../observability/report-limiter.ts';
import type { CertificateContext, ProxyConfig } from '../config.ts';
import { type AccessDecision, authorize, type Caller, findRule, noteDecision } from './authorize.ts';
import { readPreflight } from './cors.ts';
import { readCredentials } from './credentials.ts';
import type { OriginalRequest } from './original-request.ts';
import {
  AMBIGUOUS_CERTIFICATE,
  createRefusalReply,
  getErrorResponse,
  getLogDecision,
  getLogReason,
  type ProxyRefusal,
  refuseUndecided,
} from './refusals.ts';

type SharedDeps = 'isTrustedPeer' | 'getCertificate' | 'isCertificateAmbiguous' | 'resourceMetadata' | 'now' | 'log';

export interface RequestCheckDeps extends Pick<ProxyConfig, 'policy' | 'quotas' | SharedDeps> {
  /** Paths of the token service, which are never forwarded to an API. */
  readonly isServicePath: (path: string) => boolean;
  /** Characters of a request target. */
  readonly maxTargetLength: number;
}

/** Whom a gateway asks for, and what is logged about it. */
type CheckContext = Pick<RequestContext, 'id' | 'peer' | 'notes'>;

/** A request that another gateway asks about. */
export interface CheckedRequest extends CheckContext, CertificateContext {
  readonly clientAddress: string;
  readonly original: OriginalRequest;
  readonly head: RequestHead;
}

export type CheckResult =
  | {
      readonly kind: 'allowed';
      readonly rule: AccessRule;
      readonly caller: Caller | undefined;
      /** Fields for the response to the client: of a limit, or of CORS. */
      readonly fields: Readonly<Record<string, string>>;
    }
  /** The response to the client. */
  | { readonly kind: 'refused'; readonly reply: Reply };

/**
 * Another gateway asks whether it may forward a request, and for whom. The request is authorized by the policy of the proxy, so that
 * both decide alike.
 *
 * A refusal is 401, 403, 429 beyond a limit, or 503 for an internal error: gateways understand no other status
 * (docs/decisions/0010-forward-auth.md).
 */
export class RequestCheck {
  readonly #deps: RequestCheckDeps;

  readonly #reportFailure: ReturnType<typeof createFailureReporter>;

  constructor(deps: RequestCheckDeps) {
    this.#deps = deps;
    this.#reportFailure = createFailureReporter(deps.log, 'forward_auth_failed');
  }

  /** Returns undefined if this peer may ask. */
  refusePeer({ id, peer, notes, sourceUnknown }: RequestContext): Reply | undefined {
    if (sourceUnknown !== true && this.#deps.isTrustedPeer(peer)) return undefined;
    const note = 'only proxies listed there may use forward-auth';
    this.#deps.log.warn('forward_auth_peer_not_trusted', { request_id: id, peer, setting: 'trustedProxies', note });
    return this.refuse({ id, notes }, { reason: 'peer_not_trusted' });
  }

  async check(request: CheckedRequest): Promise<CheckResult> {
    const { policy } = this.#deps;
    const { original, notes } = request;
    if (this.#deps.isCertificateAmbiguous(request))
      return refused(this.refuseAmbiguous(request, AMBIGUOUS_CERTIFICATE.detail));
    if (original.url.length > this.#deps.maxTargetLength)
      return refused(this.refuse(request, { reason: 'target_too_long' }));
    notes.original = `${original.method} ${original.url.split('?', 1)[0]}`;
    if (original.host === undefined && (policy.rules.hosts.size > 0 || policy.pagesHost !== undefined))
      return refused(this.refuseAmbiguous(request, 'no header names the host, but a route or pages.url requires one'));
    if (request.head.isServiceWorkerScript && policy.pagesHost === undefined)
      return refused(this.refuse(request, { reason: 'service_worker_script' }));
    return this.#respondToPreflight(request) ?? this.#authorize(request);
  }

  /**
   * A preflight has no token; the rule of the request that it announces applies. The response has the CORS fields, which a
   * server behind the gateway may copy. Undefined: it is none.
   */
  #respondToPreflight(request: CheckedRequest): CheckResult | undefined {
    const { original, head, notes } = request;
    const { method, url, host = '' } = original;
    const { authorization, rawHeaders } = head;
    const preflight = readPreflight(this.#deps.policy, { method, url, rawHeaders }, { host, authorization });
    if (preflight === undefined) return undefined;
    const { rule, target, fields } = preflight;
    notes.rule = rule.name;
    if (fields === undefined) return refused(this.refuse(request, { reason: 'origin_not_allowed' }));
    const refusal = this.#refuseUnlessUnchanged(request, target.path);
    if (refusal !== undefined) return refused(refusal);
    notes.decision = 'allowed';
    notes.reason = 'preflight';
    return { kind: 'allowed', rule, caller: undefined, fields };
  }

  async #authorize(request: CheckedRequest): Promise<CheckResult> {
    const { policy, now } = this.#deps;
    const { original, head, notes } = request;
    const { method, url, host = '' } = original;
    try {
      const decision = await authorize(policy, {
        method,
        url,
        host,
        credentials: readCredentials(head.authorization),
        certificate: () => this.#deps.getCertificate(request),
        // `host` is that of the original request already.
        proof: () => ({ values: getHeaderValues(head.rawHeaders, 'dpop') }),
        clientAddress: () => request.clientAddress,
        now: now(),
      });
      return this.#decide(request, decision);
    } catch (error) {
      this.#reportFailure(request.id, error);
      noteDecision(notes, findRule(policy, { method, url, host }));
      // The other gateway chooses the upstream.
      delete notes.upstream;
      return refused(this.refuse(request, refuseUndecided(error)));
    }
  }

  #decide(request: CheckedRequest, decision: AccessDecision): CheckResult {
    if (decision.kind === 'asterisk') return refused(this.refuseAmbiguous(request, 'it is OPTIONS *'));
    const { notes, original, clientAddress } = request;
    const { now, quotas, resourceMetadata } = this.#deps;
    noteDecision(notes, decision);
    // The other gateway chooses the upstream.
    if (decision.rule !== undefined) delete notes.upstream;
    if (decision.kind === 'refused') {
      const { refusal, target, nearMisses } = decision;
      const metadata = target && resourceMetadata?.getUrl(target.authority ?? original.host ?? '', target.path);
      return refused(this.refuse(request, refusal, nearMisses && `no_rule (${nearMisses})`, metadata));
    }
    const { rule, caller, target } = decision;
    const refusal = this.#refuseUnlessUnchanged(request, target.path);
    if (refusal !== undefined) return refused(refusal);
    const quota = quotas?.get(rule);
    const exceeded = quota?.take(caller, clientAddress, now());
    if (exceeded !== undefined && rule.reportOnly !== true) return refused(this.refuse(request, exceeded));
    const wouldRefuse = decision.wouldRefuse ?? exceeded;
    notes.decision = wouldRefuse === undefined ? 'allowed' : 'would_refuse';
    if (wouldRefuse !== undefined) notes.reason = getLogReason(wouldRefuse);
    return { kind: 'allowed', rule, caller, fields: quota === undefined ? {} : toRecord(quota.getFields(now())) };
  }

  /** The gateway forwards the path as it received it, and the rule matched the decoded path. */
  #refuseUnlessUnchanged(request: CheckedRequest, path: string): Reply | undefined {
    if (getSentPath(request.original.url) !== path)
      return this.refuse(request, { reason: 'malformed', detail: 'unnecessary percent-encoding in the path' });
    return this.#deps.isServicePath(path) ? this.refuse(request, { reason: 'no_rule' }, 'service_path') : undefined;
  }

  refuse(
    { id, notes }: { readonly id: string; readonly notes: RequestNotes },
    refusal: ProxyRefusal,
    reason = getLogReason(refusal),
    resourceMetadata?: string,
  ): Reply {
    notes.decision = getLogDecision(refusal);
    notes.reason = reason;
    return createRefusalReply(refusal, {
      resourceMetadata,
      proofAlgorithms: this.#deps.policy.proofs?.verifier.algorithms,
      requestId: id,
      override: { status: getForwardAuthStatus(refusal), close: false },
    });
  }

  /** Clients cannot cause this through a gateway that is configured correctly, so it is logged for its operator. */
  refuseAmbiguous(context: CheckContext, detail: string): Reply {
    const { id, peer } = context;
    this.#deps.log.warn('forward_auth_ambiguous', { request_id: id, peer, detail });
    return this.refuse(context, { reason: 'original_request_ambiguous', detail });
  }
}

const refused = (reply: Reply): CheckResult => ({ kind: 'refused', reply });

/** nginx responds with 500 to everything but 2xx, 401 and 403; the others forward 429 and 503. */
export function getForwardAuthStatus(refusal: ProxyRefusal): number {
  const { status } = getErrorResponse(refusal);
  return status === 401 || status === 429 || status === 503 ? status : 403;
}

/** The path as it was sent, with upper-case hexadecimal digits (RFC 3986 §6.2.2.1). */
const getSentPath = (url: string): string =>
  url
    .replace(/^https?:\/\/[^/?#]*/i, '')
    .replace(/\?.*$/s, '')
    .replace(/%[0-9a-f]{2}/gi, (escape) => escape.toUpperCase());

/** Converts a list of names and values. */
export function toRecord(list: readonly string[]): Record<string, string> {
  const fields: Record<string, string> = {};
  for (let at = 0; at + 1 < list.length; at += 2) fields[list[at] ?? ''] = list[at + 1] ?? '';
  return fields;
}
