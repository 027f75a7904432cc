import type { AccessRule } from '../domain/access-rule.ts';
import type { Epoch, PresentedCertificate } from '../domain/grant.ts';
import type { Reply } from '../http/reply.ts';
import type { RequestContext } from '../http/request-context.ts';
import type { PeerList } from '../listener/client-address.ts';
import type { Logger } from '../observability/logger.ts';
import type { PolicyContext } from './policy/authorize.ts';
import type { HeaderRules } from './policy/headers.ts';
import type { LiveStreams } from './policy/live-streams.ts';
import type { Quotas } from './policy/quotas.ts';
import type { ResourceMetadata } from './policy/resource-metadata.ts';
import type { RenderRootPage } from './policy/root-page.ts';
import type { ServedHosts } from './policy/served-hosts.ts';
import type { UpstreamRewriter } from './policy/upstream-rewriter.ts';
import type { UpstreamHandle } from './upstream/registry.ts';

/** Which responses end when their token expires or is revoked. */
export type EndStreams = 'all' | 'upgrades-and-events' | 'none';

/** What the client certificate of a request is read from. */
export type CertificateContext = Pick<RequestContext, 'peer' | 'sourceUnknown' | 'certificate'> & {
  readonly request: { readonly rawHeaders: readonly string[] };
  /** A gateway that asks over gRPC sends the certificate of its client here: PEM, percent-encoded. */
  readonly sourceCertificate?: string | undefined;
};

/** May a request name this host? */
export type HostCheck = ServedHosts['accepts'];

/** How requests are authorized and forwarded under one configuration. */
export interface ProxyConfig {
  /** With assertions for upstreams that expect them. */
  readonly policy: PolicyContext;
  readonly headers: HeaderRules;
  readonly rewriter: UpstreamRewriter;
  readonly maxBodyBytes: number;
  readonly streams: LiveStreams;
  readonly endStreams: EndStreams;
  /** It is undefined if no rule has a limit. */
  readonly quotas: Quotas | undefined;
  /** It is undefined where challenges name no metadata. */
  readonly resourceMetadata: ResourceMetadata | undefined;
  /** It is undefined where browsers get JSON as well. */
  readonly renderRootPage: RenderRootPage | undefined;
  readonly getCertificate: (
    context: CertificateContext,
  ) => PresentedCertificate | undefined | Promise<PresentedCertificate | undefined>;
  /** Is it ambiguous which client certificate a front proxy forwards? */
  readonly isCertificateAmbiguous: (context: CertificateContext) => boolean;
  /** Is this peer one of `trustedProxies`, whose X-Forwarded-* fields are trusted? */
  readonly isTrustedPeer: (peer: string) => boolean;
  readonly acceptsHost: HostCheck;
  readonly getUpstream: (rule: AccessRule) => UpstreamHandle | undefined;
  /** A request could not be decided because of an error. */
  readonly reportFailure: (requestId: string, error: unknown) => void;
  readonly now: () => Epoch;
  readonly log: Logger;
}

/** One configuration, as requests use it. */
export interface RequestConfig extends ProxyConfig {
  readonly trustedProxies: PeerList;
  /** Might gatehouse serve this request target itself? */
  readonly isServiceTarget: (target: string) => boolean;
  /** Does another gateway ask about a request? */
  readonly isForwardAuth: (target: string) => boolean;
  /** Serves a request for the token API, an OAuth endpoint, a page or forward-auth. Undefined: it is for the proxy. */
  readonly serve: (context: RequestContext) => Reply | Promise<Reply> | undefined;
  /** A request uses this configuration, until `release`. */
  retain(): void;
  release(): void;
}
