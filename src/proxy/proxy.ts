import { hash } from 'node:crypto';
import type { AccessRule } from '../domain/access-rule.ts';
import type { ShownCertificate } from '../domain/bearer.ts';
import type { Epoch } from '../domain/epoch.ts';
import { compileRules } from '../domain/rule-matcher.ts';
import type { Call } from '../http/call.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import { type Admission, type AdmissionDesk, admit, type Caller } from './admission.ts';
import { createCarrier, type EndStreams } from './carry.ts';
import { corsOf, type Preflight, readPreflight } from './cors.ts';
import { readCredentials } from './credentials.ts';
import type { AcceptsHost, CertificateCall, FastPolicy } from './fast/generation.ts';
import { type HeaderPolicy, headerRules } from './headers.ts';
import { type LiveStreams, liveStreams } from './live-streams.ts';
import { ownAuthorities } from './own-authority.ts';
import { AMBIGUOUS_CERTIFICATE, answerEarly, type ProxyRefusal, reasonOf, refuse } from './refuse.ts';
import { type RequestHead, readHead } from './request-head.ts';
import { allowedHosts, type HostSettings, servedHosts } from './served-hosts.ts';
import type { UpstreamSettings } from './upstream-settings.ts';
import { createUpstreams, type Upstreams } from './upstreams.ts';
import { waysOut } from './way-out.ts';

export interface ProxyDeps extends Pick<AdmissionDesk, 'readAccess' | 'revocations' | 'integrationOf'> {
  readonly rules: readonly AccessRule[];
  readonly upstreams: Readonly<Record<string, UpstreamSettings>>;
  /** Where connections to upstreams are kept; shared by all configurations. Left out: a place of its own. */
  readonly ways?: Upstreams;
  /** A signed statement for one upstream about who is calling. */
  readonly assert?: (caller: Caller, audience: string) => string;
  /** `{base_url}`: its host is ours. */
  readonly publicUrl: string;
  /** The host of the confirmation pages, where it is theirs alone. */
  readonly pagesHost?: string | undefined;
  /** Which hosts requests may name; omitted: any. */
  readonly hosts?: HostSettings;
  readonly realm: string;
  readonly headers: HeaderPolicy;
  readonly maxBodyBytes: number;
  /** The client certificate of a request, for bound tokens. Omitted: that of its TLS connection, whatever it is. */
  readonly certificateOf?: (call: CertificateCall) => ShownCertificate | undefined;
  /** Is it ambiguous which client certificate a front proxy forwards? */
  readonly isAmbiguous?: (call: CertificateCall) => boolean;
  /** Is this peer a listed proxy, whose X-Forwarded-* are believed? */
  readonly trusts: (peer: string) => boolean;
  /** Where what takes long is known; shared by all configurations. Left out: a list of its own. */
  readonly streams?: LiveStreams;
  readonly endStreams?: EndStreams;
  readonly now: () => Epoch;
  readonly log: Logger;
}

export interface Proxy {
  /** By which requests are judged; forward-auth asks the same one. */
  readonly desk: AdmissionDesk;
  handle(call: Call): void | Promise<void>;
  readonly acceptsHost: AcceptsHost;
  /** The same rules, for requests that take the fast lane. */
  readonly fast: FastPolicy;
  /** Lets what runs end, within this time. */
  close(withinSeconds?: number): Promise<void>;
}

/** Everything that is not the token service's own: judged, and sent on to where its rule says. */
export function createProxy(deps: ProxyDeps): Proxy {
  const { realm, log, now } = deps;
  const certificateOf = deps.certificateOf ?? ((call: CertificateCall) => unjudged(call.certificate()));
  const isAmbiguous = deps.isAmbiguous ?? (() => false);
  const rules = compileRules(deps.rules);
  const desk: AdmissionDesk = {
    rules,
    readAccess: deps.readAccess,
    revocations: deps.revocations,
    integrationOf: deps.integrationOf,
    isOwnAuthority: ownAuthorities(
      deps.publicUrl,
      rules,
      allowedHosts(deps.hosts?.allowed ?? [], deps.pagesHost),
    ),
    pagesHost: deps.pagesHost,
  };
  const hosts =
    deps.hosts &&
    servedHosts(
      {
        settings: deps.hosts,
        publicUrl: deps.publicUrl,
        routeHosts: rules.hosts,
        pagesHost: deps.pagesHost,
      },
      log,
    );
  const acceptsHost: AcceptsHost =
    hosts === undefined ? () => true : (host, peer, socket) => hosts.accepts(host, peer, socket);

  const turnAway = (call: Call, refusal: ProxyRefusal, rule?: AccessRule, why = reasonOf(refusal)): void => {
    call.note({ decision: 'refused', reason: why });
    refuse(call.response, refusal, {
      realm,
      requestId: call.id,
      cors: corsOf(rule, call.request.rawHeaders),
    });
  };
  const shared = {
    headers: headerRules({
      ...deps.headers,
      reserved: Object.values(deps.upstreams).flatMap(({ assertion }) => assertion?.header ?? []),
    }),
    out: waysOut(deps),
    maxBodyBytes: deps.maxBodyBytes,
    trusts: deps.trusts,
    streams: deps.streams ?? liveStreams({ revocations: deps.revocations, now, log }),
    endStreams: deps.endStreams ?? 'upgrades-and-events',
    acceptsHost,
    log,
  };
  const carrier = createCarrier({
    ...shared,
    upstreams: deps.upstreams,
    ways: deps.ways ?? createUpstreams(log),
    turnAway,
  });

  const answerPreflight = (call: Call, { rule, fields }: Preflight): void => {
    call.note({ rule: rule.name });
    if (fields === undefined) return turnAway(call, { reason: 'origin_not_allowed' }, rule);
    call.note({ decision: 'answered', reason: 'preflight' });
    answerEarly(call.response, {
      status: 204,
      text: '',
      close: false,
      headers: { ...fields, 'X-Request-Id': call.id },
    });
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
      const why = admission.tried && `no_rule (${admission.tried})`;
      turnAway(call, admission.refusal, rule, why);
      return;
    }
    carrier.carry(call, head, admission);
  };

  const stumble = (call: Call, error: unknown): void => {
    log.error('admission_failed', { request_id: call.id, ...errorFields(error) });
    turnAway(call, { reason: 'unavailable', retryAfter: error instanceof Fault ? error.retryAfter : 1 });
  };

  return {
    desk,
    acceptsHost,
    fast: {
      ...shared,
      desk,
      realm,
      certificateOf,
      isAmbiguous,
      bareOf: (rule) => carrier.wayOf(rule)?.upstream.bare,
    },
    handle(call) {
      const { request } = call;
      const reading = readHead(request);
      if (!reading.ok) return turnAway(call, reading.refusal);
      const { head } = reading;
      // RFC 9112 §3.2.2: with an absolute URL as target, the Host field does not count.
      if (request.url?.startsWith('/') === true && !acceptsHost(head.host, call.peer, request.socket))
        return turnAway(call, { reason: 'misdirected' });
      // A service worker of the API could replace the pages of the same origin.
      if (head.serviceWorker && desk.pagesHost === undefined)
        return turnAway(call, { reason: 'service_worker_script' });
      if (isAmbiguous(call)) return turnAway(call, AMBIGUOUS_CERTIFICATE);
      const preflight = readPreflight(desk, request, head);
      if (preflight !== undefined) return answerPreflight(call, preflight);
      try {
        const admission = admit(desk, {
          method: request.method ?? '',
          url: request.url ?? '',
          host: head.host,
          credentials: readCredentials(head.authorization),
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
      await carrier.close(withinSeconds);
    },
  };
}

const unjudged = (der: Buffer | undefined): ShownCertificate | undefined =>
  der && { der, fingerprint: hash('sha256', der, 'base64url'), accepted: true };
