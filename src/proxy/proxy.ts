import { hash } from 'node:crypto';
import type { AccessRule } from '../domain/access-rule.ts';
import type { Epoch } from '../domain/epoch.ts';
import { type CompiledRules, compileRules } from '../domain/rule-matcher.ts';
import type { PresentedCertificate } from '../domain/verified-token.ts';
import type { Logger } from '../observability/logger.ts';
import { createFailureReporter } from '../observability/report-limiter.ts';
import type { ProofVerifier } from '../ports/proof-verifier.ts';
import type { CertificateContext, EndStreams, HostCheck, ProxyConfig } from './config.ts';
import type { Caller, PolicyContext } from './policy/authorize.ts';
import { type HeaderPolicy, HeaderRules } from './policy/headers.ts';
import { LiveStreams } from './policy/live-streams.ts';
import { createOriginResolver } from './policy/origin.ts';
import { createOwnAuthorityCheck } from './policy/own-authority.ts';
import type { Quotas } from './policy/quotas.ts';
import { ResourceMetadata, type ResourceMetadataSettings } from './policy/resource-metadata.ts';
import type { RenderRootPage } from './policy/root-page.ts';
import { createHostMatcher, createServedHosts, type HostSettings } from './policy/served-hosts.ts';
import { UpstreamRewriter } from './policy/upstream-rewriter.ts';
import { UpstreamRegistry, type UpstreamSet } from './upstream/registry.ts';
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
  readonly getCertificate?: ProxyConfig['getCertificate'];
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

/** The rules, upstreams and limits of one configuration. */
export class ReverseProxy {
  /** Shared with forward-auth, so that both decide alike. It signs no assertions. */
  readonly policy: PolicyContext;
  readonly acceptsHost: HostCheck;
  /** Undefined: no metadata is published. */
  readonly resourceMetadata: ResourceMetadata | undefined;
  /** For requests that are forwarded: the same policy with assertions. */
  readonly config: ProxyConfig;
  readonly #upstreams: UpstreamSet;

  constructor(deps: ProxyDeps) {
    const rules = compileRules(deps.rules);
    this.policy = createPolicy(deps, rules);
    this.acceptsHost = createHostCheck(deps, rules);
    this.resourceMetadata = createResourceMetadata(deps, rules);
    this.#upstreams = (deps.registry ?? new UpstreamRegistry(deps.log)).acquire(deps.upstreams);
    this.config = {
      policy: { ...this.policy, signAssertion: createRuleSigner(deps) },
      headers: new HeaderRules({
        ...deps.headers,
        reserved: Object.values(deps.upstreams).flatMap(({ assertion }) => assertion?.header ?? []),
      }),
      rewriter: new UpstreamRewriter(deps),
      maxBodyBytes: deps.maxBodyBytes,
      streams: deps.streams ?? new LiveStreams(deps),
      endStreams: deps.endStreams ?? 'upgrades-and-events',
      quotas: deps.quotas,
      realm: deps.realm,
      resourceMetadata: this.resourceMetadata,
      renderRootPage: deps.renderRootPage,
      getCertificate: deps.getCertificate ?? ((context) => acceptUnvalidated(context.certificate())),
      isCertificateAmbiguous: deps.isCertificateAmbiguous ?? (() => false),
      isTrustedPeer: deps.isTrustedPeer,
      acceptsHost: this.acceptsHost,
      getUpstream: ({ upstream }) => this.#upstreams.get(upstream),
      reportFailure: createFailureReporter(deps.log, 'authorization_failed'),
      now: deps.now,
      log: deps.log,
    };
  }

  /** Lets running requests end within this time. */
  close(withinSeconds = 30): Promise<void> {
    return this.#upstreams.release(withinSeconds);
  }
}

function createPolicy(deps: ProxyDeps, rules: CompiledRules): PolicyContext {
  const { publicUrl, pagesHost, hosts } = deps;
  return {
    rules,
    readAccessToken: deps.readAccessToken,
    revocations: deps.revocations,
    getIntegration: deps.getIntegration,
    isOwnAuthority: createOwnAuthorityCheck(publicUrl, rules, createHostMatcher(hosts?.allowed ?? [], pagesHost)),
    pagesHost,
    proofs: deps.proofVerifier && {
      verifier: deps.proofVerifier,
      getOrigin: createOriginResolver(publicUrl, createListedHostCheck(deps, rules)),
      now: deps.now,
    },
  };
}

const createListedHostCheck = ({ hosts, pagesHost }: ProxyDeps, rules: CompiledRules): ((name: string) => boolean) => {
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
