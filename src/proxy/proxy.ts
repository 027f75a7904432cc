import { hash } from 'node:crypto';
import type { AccessRule } from '../domain/access-rule.ts';
import type { Epoch } from '../domain/epoch.ts';
import type { RequestTarget } from '../domain/request-target.ts';
import { type CompiledRules, compileRules } from '../domain/rule-matcher.ts';
import type { PresentedCertificate } from '../domain/verified-token.ts';
import type { RequestContext } from '../http/request-context.ts';
import type { Logger } from '../observability/logger.ts';
import { createFailureReporter } from '../observability/report-limiter.ts';
import type { ProofVerifier } from '../ports/proof-verifier.ts';
import type {
  CertificateContext,
  FastPathConfig,
  FastPathPolicy,
  HostCheck,
} from './downstream/fast-path-config.ts';
import type { EndStreams } from './exchange.ts';
import { Forwarder } from './forwarder.ts';
import {
  type AccessDecision,
  authorize,
  type Caller,
  findRule,
  noteDecision,
  type PolicyContext,
} from './policy/authorize.ts';
import { getCorsFields, type Preflight, readPreflight } from './policy/cors.ts';
import { readCredentials } from './policy/credentials.ts';
import { type HeaderPolicy, HeaderRules } from './policy/headers.ts';
import { LiveStreams } from './policy/live-streams.ts';
import { createOriginResolver } from './policy/origin.ts';
import { createOwnAuthorityCheck } from './policy/own-authority.ts';
import { readPresentedProof } from './policy/presented-proof.ts';
import type { Quotas } from './policy/quotas.ts';
import {
  AMBIGUOUS_CERTIFICATE,
  getLogDecision,
  getLogReason,
  type ProxyRefusal,
  refuseUndecided,
  SUPPORTED_METHODS,
  sendEarlyResponse,
  sendRefusal,
} from './policy/refusals.ts';
import { type RequestHead, readRequestHead } from './policy/request-head.ts';
import { ResourceMetadata, type ResourceMetadataSettings } from './policy/resource-metadata.ts';
import { type RenderRootPage, selectRootPage } from './policy/root-page.ts';
import { createHostMatcher, createServedHosts, type HostSettings } from './policy/served-hosts.ts';
import { UpstreamRewriter } from './policy/upstream-rewriter.ts';
import { UpstreamRegistry } from './upstream/registry.ts';
import type { UpstreamSettings } from './upstream/settings.ts';

export interface ProxyDeps extends Pick<PolicyContext, 'readAccessToken' | 'revocations' | 'getIntegration'> {
  /** Verifies DPoP proofs; omitted: the DPoP scheme is not accepted. */
  readonly proofVerifier?: ProofVerifier | undefined;
  readonly rules: readonly AccessRule[];
  readonly upstreams: Readonly<Record<string, UpstreamSettings>>;
  /** Connections to upstreams, shared by all configurations. Omitted: a registry of its own. */
  readonly registry?: UpstreamRegistry;
  /** Signs an assertion about the caller for one upstream. */
  readonly signAssertion?: (caller: Caller, audience: string) => string | Promise<string>;
  readonly publicUrl: string;
  /** The host of the confirmation pages, where they have their own. */
  readonly pagesHost?: string | undefined;
  /** Which hosts requests may name; omitted: any. */
  readonly hosts?: HostSettings;
  readonly realm: string;
  /** Omitted: no metadata is published. */
  readonly resourceMetadata?:
    | (ResourceMetadataSettings & { readonly isServicePath: (path: string) => boolean })
    | undefined;
  /** Omitted: browsers get JSON as well. */
  readonly renderRootPage?: RenderRootPage;
  readonly headers: HeaderPolicy;
  readonly maxBodyBytes: number;
  /** The client certificate of a request, for bound tokens. Omitted: that of its TLS connection, without validation. */
  readonly getCertificate?: FastPathConfig['getCertificate'];
  /** Is it ambiguous which client certificate a front proxy forwards? */
  readonly isCertificateAmbiguous?: (context: CertificateContext) => boolean;
  /** Is this peer one of `trustedProxies`, whose X-Forwarded-* fields are trusted? */
  readonly isTrustedPeer: (peer: string) => boolean;
  /** Long-lived responses, shared by all configurations. Omitted: a list of its own. */
  readonly streams?: LiveStreams;
  readonly endStreams?: EndStreams;
  /** The limits of `rules`; omitted: there are none. */
  readonly quotas?: Quotas | undefined;
  readonly now: () => Epoch;
  readonly log: Logger;
}

/** What is known of a request that is refused. */
interface RefusedRequest {
  readonly rule?: AccessRule;
  readonly target?: RequestTarget;
  readonly host?: string;
}

/** Authorizes and forwards every request that is not for the token service. */
export class ReverseProxy {
  /** Shared with forward-auth, so that both decide alike. It signs no assertions. */
  readonly policy: PolicyContext;
  readonly acceptsHost: HostCheck;
  /** The same policy with assertions, for forwarded requests. */
  readonly fastPath: FastPathPolicy;
  /** Undefined: no metadata is published. */
  readonly resourceMetadata: ResourceMetadata | undefined;
  readonly #deps: ProxyDeps;
  readonly #forwarder: Forwarder;
  readonly #reportFailure: ReturnType<typeof createFailureReporter>;

  constructor(deps: ProxyDeps) {
    const rules = compileRules(deps.rules);
    this.#deps = deps;
    this.#reportFailure = createFailureReporter(deps.log, 'authorization_failed');
    this.policy = createPolicy(deps, rules);
    this.acceptsHost = createHostCheck(deps, rules);
    this.resourceMetadata = createResourceMetadata(deps, rules);
    const config = {
      headers: new HeaderRules({
        ...deps.headers,
        reserved: Object.values(deps.upstreams).flatMap(({ assertion }) => assertion?.header ?? []),
      }),
      rewriter: new UpstreamRewriter(deps),
      maxBodyBytes: deps.maxBodyBytes,
      isTrustedPeer: deps.isTrustedPeer,
      streams: deps.streams ?? new LiveStreams(deps),
      endStreams: deps.endStreams ?? 'upgrades-and-events',
      quotas: deps.quotas,
      now: deps.now,
      log: deps.log,
    } as const;
    this.#forwarder = new Forwarder({
      ...config,
      upstreams: deps.upstreams,
      registry: deps.registry ?? new UpstreamRegistry(deps.log),
      reject: (context, refusal, allowed, host) => this.#reject(context, refusal, { ...allowed, host }),
    });
    this.fastPath = {
      ...config,
      policy: { ...this.policy, signAssertion: createRuleSigner(deps) },
      acceptsHost: this.acceptsHost,
      realm: deps.realm,
      resourceMetadata: this.resourceMetadata,
      renderRootPage: deps.renderRootPage,
      getCertificate: deps.getCertificate ?? ((context) => acceptUnvalidated(context.certificate())),
      isCertificateAmbiguous: deps.isCertificateAmbiguous ?? (() => false),
      getUpstream: (rule) => this.#forwarder.getHandle(rule)?.upstream,
    };
  }

  handle(context: RequestContext): void | Promise<void> {
    const { request } = context;
    const { policy, fastPath } = this;
    const parsed = readRequestHead(request);
    if (!parsed.ok) return this.#reject(context, parsed.refusal);
    const { head } = parsed;
    // RFC 9112 §3.2.2: an absolute request target overrides the Host field.
    if (request.url?.startsWith('/') === true && !this.acceptsHost(head.host, context.peer, request.socket))
      return this.#reject(context, { reason: 'misdirected' });
    // A service worker of the API could replace the confirmation pages of the same origin.
    if (head.isServiceWorkerScript && policy.pagesHost === undefined)
      return this.#reject(context, { reason: 'service_worker_script' });
    if (fastPath.isCertificateAmbiguous(context)) return this.#reject(context, AMBIGUOUS_CERTIFICATE);
    const preflight = readPreflight(policy, request, head);
    if (preflight !== undefined) return this.#respondToPreflight(context, preflight);
    const { method = '', url = '' } = request;
    const { host } = head;
    const onError = (error: unknown): void =>
      this.#onInternalError(context, error, findRule(policy, { method, url, host }));
    try {
      const decision = authorize(fastPath.policy, {
        method,
        url,
        host,
        credentials: readCredentials(head.authorization),
        certificate: () => fastPath.getCertificate(context),
        proof: () => readPresentedProof(context, this.#deps.isTrustedPeer),
        clientAddress: () => context.clientAddress,
        now: this.#deps.now(),
      });
      if (!(decision instanceof Promise)) return this.#proceed(context, head, decision);
      return decision.then((settled) => this.#proceed(context, head, settled), onError);
    } catch (error) {
      return onError(error);
    }
  }

  /** Lets running requests end within this time. */
  close(withinSeconds = 30): Promise<void> {
    return this.#forwarder.close(withinSeconds);
  }

  #proceed(context: RequestContext, head: RequestHead, decision: AccessDecision): void {
    // The client may have closed the connection while its token was verified.
    if (context.response.destroyed) return;
    if (decision.kind === 'asterisk') {
      context.note({ decision: 'handled', reason: 'asterisk' });
      context.response.writeHead(204, { allow: SUPPORTED_METHODS }).end();
      return;
    }
    noteDecision(context.notes, decision);
    if (decision.kind === 'allowed') {
      if (decision.caller !== undefined) context.markAuthorized();
      return this.#forwarder.forward(context, head, decision);
    }
    const logReason = decision.nearMisses && `no_rule (${decision.nearMisses})`;
    this.#reject(context, decision.refusal, { ...decision, host: head.host }, logReason);
  }

  #respondToPreflight(context: RequestContext, { rule, fields }: Preflight): void {
    context.note({ rule: rule.name });
    if (fields === undefined) return this.#reject(context, { reason: 'origin_not_allowed' }, { rule });
    context.note({ decision: 'handled', reason: 'preflight' });
    const headers = { ...fields, 'X-Request-Id': context.id };
    sendEarlyResponse(context.response, { status: 204, text: '', close: false, headers });
  }

  #reject(
    context: RequestContext,
    refusal: ProxyRefusal,
    { rule, target, host = '' }: RefusedRequest = {},
    logReason = getLogReason(refusal),
  ): void {
    context.note({ decision: getLogDecision(refusal), reason: logReason });
    sendRefusal(context.response, refusal, {
      realm: this.#deps.realm,
      resourceMetadata: target && this.resourceMetadata?.getUrl(target.authority ?? host, target.path),
      proofAlgorithms: this.policy.proofs?.verifier.algorithms,
      requestId: context.id,
      cors: getCorsFields(rule, context.request.rawHeaders),
      page: selectRootPage(this.#deps.renderRootPage, refusal, target, context.request),
    });
  }

  #onInternalError(context: RequestContext, error: unknown, matched: RefusedRequest): void {
    this.#reportFailure(context.id, error);
    noteDecision(context.notes, matched);
    this.#reject(context, refuseUndecided(error), matched);
  }
}

function createPolicy(deps: ProxyDeps, rules: CompiledRules): PolicyContext {
  const { publicUrl, pagesHost, hosts } = deps;
  return {
    rules,
    readAccessToken: deps.readAccessToken,
    revocations: deps.revocations,
    getIntegration: deps.getIntegration,
    isOwnAuthority: createOwnAuthorityCheck(
      publicUrl,
      rules,
      createHostMatcher(hosts?.allowed ?? [], pagesHost),
    ),
    pagesHost,
    proofs: deps.proofVerifier && {
      verifier: deps.proofVerifier,
      getOrigin: createOriginResolver(publicUrl, createListedHostCheck(deps, rules)),
      now: deps.now,
    },
  };
}

const createListedHostCheck = (
  { hosts, pagesHost }: ProxyDeps,
  rules: CompiledRules,
): ((name: string) => boolean) => {
  const isAllowed = createHostMatcher(hosts?.allowed ?? [], pagesHost);
  return (name) => rules.hosts.has(name) || isAllowed(name);
};

/** Signs for the audience of the rule's upstream, if that expects an assertion. */
const createRuleSigner =
  ({ upstreams, signAssertion }: ProxyDeps): NonNullable<PolicyContext['signAssertion']> =>
  (rule, caller) => {
    const settings = upstreams[rule.upstream]?.assertion;
    return settings && signAssertion?.(caller, settings.audience ?? rule.upstream);
  };

function createResourceMetadata(deps: ProxyDeps, rules: CompiledRules): ResourceMetadata | undefined {
  const { resourceMetadata, publicUrl } = deps;
  if (resourceMetadata === undefined) return undefined;
  const isListedHost = createListedHostCheck(deps, rules);
  return new ResourceMetadata({ ...resourceMetadata, publicUrl, rules, isListedHost });
}

function createHostCheck({ hosts, publicUrl, pagesHost, log }: ProxyDeps, rules: CompiledRules): HostCheck {
  if (hosts === undefined) return () => true;
  const served = createServedHosts({ settings: hosts, publicUrl, routeHosts: rules.hosts, pagesHost }, log);
  return (host, peer, socket) => served.accepts(host, peer, socket);
}

const acceptUnvalidated = (der: Buffer | undefined): PresentedCertificate | undefined =>
  der && { der, fingerprint: hash('sha256', der, 'base64url'), accepted: true };
