import type { AccessRule } from '../domain/access-rule.ts';
import { compileRules } from '../domain/rule-matcher.ts';
import type { ResourceScope } from '../lib/shared-resources.ts';
import { createFailureReporter } from '../observability/report-limiter.ts';
import type { ProofVerifier } from '../tokens/proof-verifier.ts';
import type { HostCheck, ProxyConfig } from './config.ts';
import type { Caller, PolicyContext } from './policy/authorize.ts';
import { type HeaderPolicy, HeaderRules } from './policy/headers.ts';
import { ResourceMetadata, type ResourceMetadataSettings } from './policy/resource-metadata.ts';
import {
  createHostMatcher,
  createOriginResolver,
  createOwnAuthorityCheck,
  createServedHosts,
  type HostSettings,
} from './policy/served-hosts.ts';
import { UpstreamRewriter } from './policy/upstream-rewriter.ts';
import type { UpstreamRegistry } from './upstream/registry.ts';
import type { UpstreamSettings } from './upstream/targets.ts';

export interface ProxyDeps
  extends Pick<PolicyContext, 'readAccessToken' | 'revocations' | 'getIntegration' | 'pagesHost'>,
    Omit<
      ProxyConfig,
      'policy' | 'headers' | 'rewriter' | 'resourceMetadata' | 'acceptsHost' | 'getUpstream' | 'reportFailure'
    > {
  /** Verifies DPoP proofs; omitted: the DPoP scheme is not accepted. */
  readonly proofVerifier?: ProofVerifier | undefined;
  readonly rules: readonly AccessRule[];
  readonly upstreams: Readonly<Record<string, UpstreamSettings>>;
  /** Connections to upstreams, shared by all configurations. */
  readonly registry: UpstreamRegistry;
  readonly scope: ResourceScope;
  /** Signs an assertion about the caller for one upstream. */
  readonly signAssertion?: (caller: Caller, audience: string) => string | Promise<string>;
  readonly publicUrl: string;
  /** Which hosts requests may name; omitted: any. */
  readonly hosts?: HostSettings;
  /** Omitted: no metadata is published. */
  readonly resourceMetadata?:
    | (ResourceMetadataSettings & { readonly isServicePath: (path: string) => boolean })
    | undefined;
  readonly headers: HeaderPolicy;
}

/** The rules, upstreams and limits of one configuration. */
export class ReverseProxy {
  /** Shared with forward-auth, so that both decide alike. It signs no assertions. */
  readonly policy: PolicyContext;
  readonly acceptsHost: HostCheck;
  /** It is undefined if no metadata is published. */
  readonly resourceMetadata: ResourceMetadata | undefined;
  /** For requests that are forwarded: the same policy with assertions. */
  readonly config: ProxyConfig;

  constructor(deps: ProxyDeps) {
    const { publicUrl, pagesHost, hosts, resourceMetadata } = deps;
    const rules = compileRules(deps.rules);
    const isAllowedHost = createHostMatcher(hosts?.allowed ?? [], pagesHost);
    const isListedHost = (name: string): boolean => rules.hosts.has(name) || isAllowedHost(name);
    this.policy = {
      rules,
      readAccessToken: deps.readAccessToken,
      revocations: deps.revocations,
      getIntegration: deps.getIntegration,
      isOwnAuthority: createOwnAuthorityCheck(publicUrl, rules, isAllowedHost),
      pagesHost,
      proofs: deps.proofVerifier && {
        verifier: deps.proofVerifier,
        getOrigin: createOriginResolver(publicUrl, isListedHost),
        now: deps.now,
      },
    };
    this.acceptsHost =
      hosts === undefined
        ? () => true
        : createServedHosts({ settings: hosts, publicUrl, routeHosts: rules.hosts, pagesHost }, deps.log).accepts;
    this.resourceMetadata =
      resourceMetadata && new ResourceMetadata({ ...resourceMetadata, publicUrl, rules, isListedHost });
    const upstreams = deps.registry.acquire(deps.upstreams, deps.scope);
    this.config = {
      ...deps,
      policy: { ...this.policy, signAssertion: createRuleSigner(deps) },
      headers: new HeaderRules({
        ...deps.headers,
        reserved: Object.values(deps.upstreams).flatMap(({ assertion }) => assertion?.header ?? []),
      }),
      rewriter: new UpstreamRewriter(deps),
      resourceMetadata: this.resourceMetadata,
      acceptsHost: this.acceptsHost,
      getUpstream: ({ upstream }) => upstreams.get(upstream),
      reportFailure: createFailureReporter(deps.log, 'authorization_failed'),
    };
  }
}

/** Signs for the audience of the rule's upstream, if that expects an assertion. */
const createRuleSigner =
  ({ upstreams, signAssertion }: ProxyDeps): NonNullable<PolicyContext['signAssertion']> =>
  (rule, caller) => {
    const settings = upstreams[rule.upstream]?.assertion;
    return settings && signAssertion?.(caller, settings.audience ?? rule.upstream);
  };
