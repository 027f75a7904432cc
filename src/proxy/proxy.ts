import { hash } from 'node:crypto';
import type { AccessRule } from '../domain/access-rule.ts';
import type { Epoch } from '../domain/epoch.ts';
import { normalAuthority, type RequestTarget } from '../domain/request-target.ts';
import { compileRules, hostName } from '../domain/rule-matcher.ts';
import type { Call } from '../http/call.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import { type Admission, type AdmissionDesk, admit } from './admission.ts';
import { openUpstream, type Upstream, type UpstreamSettings } from './forward.ts';
import { type HeaderPolicy, headerRules } from './headers.ts';
import { type ProxyRefusal, refuse } from './refuse.ts';
import { BodyFault } from './request-body.ts';
import { type RequestHead, readHead } from './request-head.ts';

export interface ProxyDeps extends Pick<AdmissionDesk, 'readAccess' | 'revocations' | 'integrationOf'> {
  readonly rules: readonly AccessRule[];
  readonly upstreams: Readonly<Record<string, UpstreamSettings>>;
  /** `{base_url}`: its host is ours. */
  readonly publicUrl: string;
  readonly realm: string;
  readonly headers: HeaderPolicy;
  readonly maxBodyBytes: number;
  /** SHA-256 of the client certificate a call counts as having shown, base64url: bound tokens are held against it. */
  readonly certificateOf?: (call: Call) => string | undefined;
  /** Is this peer a listed proxy, whose X-Forwarded-* are believed? */
  readonly trusts: (peer: string) => boolean;
  readonly now: () => Epoch;
  readonly log: Logger;
}

export interface Proxy {
  /** By which requests are judged; forward-auth asks the same one. */
  readonly desk: AdmissionDesk;
  handle(call: Call): void | Promise<void>;
  /** Lets what runs end, within this time. */
  close(withinSeconds?: number): Promise<void>;
}

/** Everything that is not the token service's own: judged, and sent on to where its rule says. */
export function createProxy(deps: ProxyDeps): Proxy {
  const { realm, log, trusts, maxBodyBytes, now } = deps;
  const certificateOf = deps.certificateOf ?? ((call: Call) => fingerprintOf(call.certificate()));
  const { host, protocol } = new URL(deps.publicUrl);
  const ownAuthority = normalAuthority(host, protocol.slice(0, -1));
  const rules = compileRules(deps.rules);
  const headers = headerRules(deps.headers);
  const upstreams = new Map<string, Upstream>(
    Object.entries(deps.upstreams).map(([name, settings]) => [name, openUpstream(settings)]),
  );
  const desk: AdmissionDesk = {
    rules,
    readAccess: deps.readAccess,
    revocations: deps.revocations,
    integrationOf: deps.integrationOf,
    isOwnAuthority: (authority) => authority === ownAuthority || rules.hosts.has(hostName(authority)),
  };

  const turnAway = (call: Call, refusal: ProxyRefusal, why?: string): void => {
    call.note({ decision: 'refused', reason: why ?? reasonOf(refusal) });
    refuse(call.response, refusal, { realm, requestId: call.id });
  };

  const proceed = (call: Call, head: RequestHead, admission: Admission): void => {
    // The client may have left while its token was being read.
    if (call.response.destroyed) return;
    if (admission.kind === 'asterisk') {
      call.note({ decision: 'answered', reason: 'asterisk' });
      call.response.writeHead(204, { allow: 'GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS' }).end();
      return;
    }
    const { rule, caller } = admission;
    if (rule !== undefined) call.note({ rule: rule.name, upstream: rule.upstream });
    if (caller !== undefined) {
      const { identity, clientId, grantId } = caller.bearer;
      call.note({ identity, clientId, grantId });
    }
    if (admission.kind === 'refused') {
      turnAway(call, admission.refusal, admission.tried && `no_rule (${admission.tried})`);
      return;
    }
    forward(call, head, admission);
  };

  const forward = (call: Call, head: RequestHead, admitted: Admission & { kind: 'admitted' }): void => {
    const { request, response } = call;
    const { rule, target, caller } = admitted;
    if (head.upgrade !== undefined && /(?:^|,)\s*websocket\s*(?:,|$)/i.test(head.upgrade))
      return turnAway(call, { reason: 'upgrade_not_served' });
    if ((head.contentLength ?? 0) > maxBodyBytes) return turnAway(call, { reason: 'body_too_large' });
    const upstream = upstreams.get(rule.upstream);
    if (upstream === undefined) return turnAway(call, { reason: 'upstream_failed' });

    const list = headers.forUpstream(request.rawHeaders, head, {
      requestId: call.id,
      peer: call.peer,
      encrypted: 'encrypted' in request.socket,
      trustedPeer: trusts(call.peer),
      host: target.authority ?? head.host,
      forwardAuthorization: rule.forwardAuthorization,
      caller,
    });
    call.note({ decision: 'forwarded' });
    const hasBody = head.framing !== 'none';
    if (head.expectsContinue && hasBody) response.writeContinue();
    const report = (event: string, cause: unknown): void =>
      log.warn(event, {
        requestId: call.id,
        upstream: rule.upstream,
        ...errorFields(cause),
        stack: undefined,
      });
    upstream.forward({
      request,
      response,
      method: request.method ?? '',
      path: wirePath(rule, target),
      headers: list,
      hasBody,
      maxBodyBytes,
      answerHeaders: (raw, status) => headers.forClient(raw, status, call.id),
      failed(refusal, cause) {
        if (refusal.reason.startsWith('upstream')) report('upstream_failed', cause);
        turnAway(call, refusal);
      },
      broken(cause) {
        const clientLeft = cause instanceof BodyFault;
        call.note({ reason: clientLeft ? 'client_left' : 'upstream_broke_off' });
        if (!clientLeft) report('upstream_broke_off', cause);
      },
    });
  };

  const stumble = (call: Call, error: unknown): void => {
    log.error('admission_failed', { requestId: call.id, ...errorFields(error) });
    turnAway(call, { reason: 'unavailable', retryAfter: error instanceof Fault ? error.retryAfter : 1 });
  };

  return {
    desk,
    handle(call) {
      const { request } = call;
      const reading = readHead(request);
      if (!reading.ok) return turnAway(call, reading.refusal);
      const { head } = reading;
      try {
        const admission = admit(desk, {
          method: request.method ?? '',
          url: request.url ?? '',
          host: head.host,
          authorization: head.authorization,
          certificate: () => certificateOf(call),
          now: now(),
        });
        if (!(admission instanceof Promise)) return proceed(call, head, admission);
        return admission.then(
          (settled) => proceed(call, head, settled),
          (error: unknown) => stumble(call, error),
        );
      } catch (error) {
        return stumble(call, error);
      }
    },
    async close(withinSeconds = 30) {
      await Promise.all([...upstreams.values()].map((upstream) => upstream.close(withinSeconds)));
    },
  };
}

/** RFC 8705 §3.1 `x5t#S256`. */
const fingerprintOf = (certificate: Buffer | undefined): string | undefined =>
  certificate && hash('sha256', certificate, 'base64url');

/** For the log. */
export function reasonOf(refusal: ProxyRefusal): string {
  if (refusal.reason === 'token_invalid') return `token_${refusal.why}`;
  return refusal.reason === 'malformed' ? `malformed: ${refusal.detail}` : refusal.reason;
}

/** The matched path, less the segments of the prefix its rule takes off, and the query to the letter. */
function wirePath({ stripPrefix }: AccessRule, { path, query }: RequestTarget): string {
  if (stripPrefix === undefined) return path + query;
  let at = 0;
  for (let segments = stripPrefix.split('/').length - 1; segments > 0 && at >= 0; segments -= 1)
    at = path.indexOf('/', at + 1);
  return (at < 0 ? '/' : path.slice(at)) + query;
}
