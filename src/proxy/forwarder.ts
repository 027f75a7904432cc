import type { AccessRule } from '../domain/access-rule.ts';
import { isAllowedOrigin } from '../domain/cors.ts';
import type { RequestContext } from '../http/request-context.ts';
import { NodeDownstream } from './downstream/node-downstream.ts';
import { formatFields } from './downstream/response-text.ts';
import type { ForwardConfig } from './exchange.ts';
import { getOriginHeader } from './policy/cors.ts';
import type { ForwardInfo } from './policy/headers.ts';
import { getLogReason, type ProxyRefusal } from './policy/refusals.ts';
import type { RequestHead } from './policy/request-head.ts';
import type { AllowedRequest } from './policy/upstream-rewriter.ts';
import type { UpstreamHandle, UpstreamRegistry, UpstreamSet } from './upstream/registry.ts';
import type { UpstreamSettings } from './upstream/settings.ts';
import { WebSocketForward } from './websocket-forward.ts';

export interface ForwarderDeps extends ForwardConfig {
  readonly upstreams: Readonly<Record<string, UpstreamSettings>>;
  readonly registry: UpstreamRegistry;
  readonly isTrustedPeer: (peer: string) => boolean;
  readonly reject: (
    context: RequestContext,
    refusal: ProxyRefusal,
    allowed: AllowedRequest,
    host: string,
  ) => void;
}

/** Forwards authorized requests of the full path, and WebSockets. */
export class Forwarder {
  readonly #deps: ForwarderDeps;
  readonly #upstreams: UpstreamSet;

  constructor(deps: ForwarderDeps) {
    this.#deps = deps;
    this.#upstreams = deps.registry.acquire(deps.upstreams);
  }

  getHandle({ upstream }: AccessRule): UpstreamHandle | undefined {
    return this.#upstreams.get(upstream);
  }

  close(withinSeconds: number): Promise<void> {
    return this.#upstreams.release(withinSeconds);
  }

  forward(context: RequestContext, head: RequestHead, allowed: AllowedRequest): void {
    const refusal = this.#check(context, head, allowed);
    const handle = this.getHandle(allowed.rule);
    const refuse = (reason: ProxyRefusal): void => this.#deps.reject(context, reason, allowed, head.host);
    if (refusal !== undefined) return refuse(refusal);
    if (handle === undefined) return refuse({ reason: 'upstream_failed' });
    const { quotas, now } = this.#deps;
    const quota = quotas?.get(allowed.rule);
    const exceeded = quota?.take(allowed.caller, context.clientAddress, now());
    if (exceeded !== undefined && allowed.rule.reportOnly !== true) return refuse(exceeded);
    const headers = this.#buildHeaders(context, head, allowed);
    if (exceeded !== undefined && allowed.wouldRefuse === undefined)
      context.note({ decision: 'would_refuse', reason: getLogReason(exceeded) });
    if (context.upgrade !== undefined)
      return new WebSocketForward(this.#deps, context, allowed, refuse).start(handle.tunnels, head, headers);
    const limitFields = quota?.getFields(now()) ?? [];
    const fields = formatCheckedFields(headers);
    if (fields === undefined) return refuse(INVALID_FIELD);
    const downstream = new NodeDownstream(this.#deps, context, head, allowed, fields, limitFields, refuse);
    const { method, path, body } = downstream.request;
    if (!REQUEST_LINE.test(`${method} ${path}`)) return refuse(INVALID_FIELD);
    if (head.expectsContinue && body !== undefined) context.response.writeContinue();
    downstream.forward(handle.upstream);
  }

  #check(
    { request, upgrade }: RequestContext,
    head: RequestHead,
    { rule }: AllowedRequest,
  ): ProxyRefusal | undefined {
    if (upgrade === undefined ? requestsWebSocket(head) : rule.websocket !== true)
      return { reason: 'upgrade_not_allowed' };
    // Browsers send no preflight before they open a WebSocket (RFC 6455 §10.2).
    const origin = upgrade && rule.cors && getOriginHeader(request.rawHeaders);
    if (rule.cors !== undefined && origin !== undefined && !isAllowedOrigin(rule.cors, origin))
      return { reason: 'origin_not_allowed' };
    if ((head.contentLength ?? 0) > this.#deps.maxBodyBytes) return { reason: 'body_too_large' };
    return undefined;
  }

  #buildHeaders(context: RequestContext, head: RequestHead, allowed: AllowedRequest): string[] {
    const { headers, rewriter, isTrustedPeer } = this.#deps;
    const { rule, target, caller, wouldRefuse } = allowed;
    const { request, peer } = context;
    const info: ForwardInfo = {
      requestId: context.id,
      peer,
      encrypted: 'encrypted' in request.socket,
      isTrustedPeer: context.sourceUnknown !== true && isTrustedPeer(peer),
      host: target.authority ?? head.host,
      forwardAuthorization: rule.forwardAuthorization,
      caller,
      trace: context.notes.trace,
    };
    const { list, trace } = headers.buildRequestHeaders(request.rawHeaders, head, info);
    list.push(...rewriter.getAssertionField(allowed));
    context.note({ decision: 'forwarded', trace });
    if (wouldRefuse !== undefined)
      context.note({ decision: 'would_refuse', reason: getLogReason(wouldRefuse) });
    return list;
  }
}

const INVALID_FIELD: ProxyRefusal = { reason: 'malformed', detail: 'an invalid header field' };

/** An `Upgrade` field outside of a valid handshake. An upstream must not take it for one. */
const requestsWebSocket = ({ upgrade }: RequestHead): boolean =>
  upgrade !== undefined && /(?:^|,)\s*websocket\s*(?:,|$)/i.test(upgrade);

/** RFC 9112 §3. Both parts were checked before; what is written to a connection is checked once more. */
const REQUEST_LINE = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+ \/[\x21-\x7e]*$/;
/** RFC 9110 §5.1, §5.5: no control characters. */
const FIELD_LINES = /^(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t\x20-\x7e\x80-\xff]*\r\n)*$/;

/** Undefined: the text would not consist of exactly these fields. */
function formatCheckedFields(list: readonly string[]): string | undefined {
  const text = formatFields(list);
  let lines = 0;
  for (let at = text.indexOf('\n'); at >= 0; at = text.indexOf('\n', at + 1)) lines += 1;
  return lines === list.length / 2 && FIELD_LINES.test(text) ? text : undefined;
}
