import { getHeaderValues } from '../../http/raw-headers.ts';
import type { Reply } from '../../http/reply.ts';
import type { RequestContext } from '../../http/request-context.ts';
import { createFailureReporter } from '../../observability/report-limiter.ts';
import type { ProxyConfig } from '../config.ts';
import { type AccessDecision, authorize, type Caller, findRule, noteDecision } from './authorize.ts';
import { type Preflight, readPreflight } from './cors.ts';
import { readCredentials } from './credentials.ts';
import { createIdentityHeaders, type HeaderPolicy } from './headers.ts';
import { type OriginalRequest, readOriginalRequest } from './original-request.ts';
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

interface ForwardAuthDeps extends Pick<ProxyConfig, 'policy' | 'quotas' | SharedDeps> {
  readonly headers: HeaderPolicy;
  /** Paths of the token service, which are never forwarded to an API. */
  readonly isServicePath: (path: string) => boolean;
}

/**
 * Forward-auth: another gateway asks whether it may forward a request, and for whom. The request is authorized by the policy
 * of the proxy, so that both decide alike.
 *
 * The response is 200 with every identity header, 401, 403, 429 beyond a limit, or 503 for an internal error: gateways
 * understand no other status (docs/decisions/0010-forward-auth.md).
 */
export class ForwardAuth {
  readonly #deps: ForwardAuthDeps;

  readonly #reportFailure: ReturnType<typeof createFailureReporter>;

  constructor(deps: ForwardAuthDeps) {
    this.#deps = deps;
    this.#reportFailure = createFailureReporter(deps.log, 'forward_auth_failed');
  }

  /** `pathSuffix`: what follows `/check` in the request target, unchanged. */
  async handle(context: RequestContext, pathSuffix: string): Promise<Reply> {
    const { policy, log } = this.#deps;
    const { request, peer } = context;
    if (context.sourceUnknown === true || !this.#deps.isTrustedPeer(peer)) {
      const note = 'only proxies listed there may use forward-auth';
      const setting = 'trustedProxies';
      log.warn('forward_auth_peer_not_trusted', { request_id: context.id, peer, setting, note });
      return this.#reject(context, { reason: 'peer_not_trusted' });
    }
    const { authorization, isServiceWorkerScript } = request.head;
    if (this.#deps.isCertificateAmbiguous(context)) return this.#rejectAmbiguous(context, AMBIGUOUS_CERTIFICATE.detail);
    const result = readOriginalRequest(request, pathSuffix);
    if (!result.ok) return this.#rejectAmbiguous(context, result.detail);
    const { original } = result;
    context.note({ original: `${original.method} ${original.url.split('?', 1)[0]}` });
    if (original.host === undefined && (policy.rules.hosts.size > 0 || policy.pagesHost !== undefined))
      return this.#rejectAmbiguous(context, 'no header names the host, but a route or pages.url requires one');
    if (isServiceWorkerScript && policy.pagesHost === undefined)
      return this.#reject(context, { reason: 'service_worker_script' });
    return this.#authorize(context, original, authorization);
  }

  async #authorize(
    context: RequestContext,
    original: OriginalRequest,
    authorization: readonly string[],
  ): Promise<Reply> {
    const { policy, now } = this.#deps;
    const { method, url, host = '' } = original;
    const { rawHeaders } = context.request;
    const preflight = readPreflight(policy, { method, url, rawHeaders }, { host, authorization });
    if (preflight !== undefined) return this.#respondToPreflight(context, original, preflight);
    try {
      const decision = await authorize(policy, {
        method,
        url,
        host,
        credentials: readCredentials(authorization),
        certificate: () => this.#deps.getCertificate(context),
        // `host` is that of the original request already.
        proof: () => ({ values: getHeaderValues(rawHeaders, 'dpop') }),
        clientAddress: () => context.clientAddress,
        now: now(),
      });
      return this.#respond(context, original, decision);
    } catch (error) {
      this.#reportFailure(context.id, error);
      noteDecision(context.notes, findRule(policy, { method, url, host }));
      // The other gateway chooses the upstream.
      delete context.notes.upstream;
      return this.#reject(context, refuseUndecided(error));
    }
  }

  #respond(context: RequestContext, original: OriginalRequest, decision: AccessDecision): Reply {
    if (decision.kind === 'asterisk') return this.#rejectAmbiguous(context, 'it is OPTIONS *');
    const { rule, caller } = decision;
    noteDecision(context.notes, decision);
    // The other gateway chooses the upstream.
    if (rule !== undefined) delete context.notes.upstream;
    if (decision.kind === 'refused') {
      const { refusal, target, nearMisses } = decision;
      const metadata =
        target && this.#deps.resourceMetadata?.getUrl(target.authority ?? original.host ?? '', target.path);
      return this.#reject(context, refusal, nearMisses && `no_rule (${nearMisses})`, metadata);
    }
    const rejection = this.#rejectUnlessUnchanged(context, original, decision.target.path);
    if (rejection !== undefined) return rejection;
    const quota = rule && this.#deps.quotas?.get(rule);
    const exceeded = quota?.take(caller, context.clientAddress, this.#deps.now());
    if (exceeded !== undefined && rule?.reportOnly !== true) return this.#reject(context, exceeded);
    const wouldRefuse = decision.wouldRefuse ?? exceeded;
    if (wouldRefuse === undefined) context.note({ decision: 'allowed' });
    else context.note({ decision: 'would_refuse', reason: getLogReason(wouldRefuse) });
    return this.#allow(context, caller, quota && toRecord(quota.getFields(this.#deps.now())));
  }

  /**
   * A preflight has no token; the rule of the request that it announces applies. The response has the CORS fields, which a
   * server behind the gateway may copy.
   */
  #respondToPreflight(context: RequestContext, original: OriginalRequest, { rule, target, fields }: Preflight): Reply {
    context.note({ rule: rule.name });
    if (fields === undefined) return this.#reject(context, { reason: 'origin_not_allowed' });
    const rejection = this.#rejectUnlessUnchanged(context, original, target.path);
    if (rejection !== undefined) return rejection;
    context.note({ decision: 'allowed', reason: 'preflight' });
    return this.#allow(context, undefined, fields);
  }

  /** The gateway forwards the path as it received it, and the rule matched the decoded path. */
  #rejectUnlessUnchanged(context: RequestContext, original: OriginalRequest, path: string): Reply | undefined {
    if (getSentPath(original.url) !== path)
      return this.#reject(context, { reason: 'malformed', detail: 'unnecessary percent-encoding in the path' });
    return this.#deps.isServicePath(path) ? this.#reject(context, { reason: 'no_rule' }, 'service_path') : undefined;
  }

  #allow(context: RequestContext, caller: Caller | undefined, extraFields?: Readonly<Record<string, string>>): Reply {
    const identity = toRecord(createIdentityHeaders(this.#deps.headers, caller));
    const headers = { 'cache-control': 'no-store', ...identity, ...extraFields, 'X-Request-Id': context.id };
    return { status: 200, headers };
  }

  #reject(
    context: RequestContext,
    refusal: ProxyRefusal,
    reason = getLogReason(refusal),
    resourceMetadata?: string,
  ): Reply {
    context.note({ decision: getLogDecision(refusal), reason });
    return createRefusalReply(refusal, {
      resourceMetadata,
      proofAlgorithms: this.#deps.policy.proofs?.verifier.algorithms,
      requestId: context.id,
      override: { status: getForwardAuthStatus(refusal), close: false },
    });
  }

  /** Clients cannot cause this through a gateway that is configured correctly, so it is logged for its operator. */
  #rejectAmbiguous(context: RequestContext, detail: string): Reply {
    const { id, peer } = context;
    this.#deps.log.warn('forward_auth_ambiguous', { request_id: id, peer, detail });
    return this.#reject(context, { reason: 'original_request_ambiguous', detail });
  }
}

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

function toRecord(list: readonly string[]): Record<string, string> {
  const fields: Record<string, string> = {};
  for (let at = 0; at + 1 < list.length; at += 2) fields[list[at] ?? ''] = list[at + 1] ?? '';
  return fields;
}
