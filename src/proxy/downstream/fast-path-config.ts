import type { AccessRule } from '../../domain/access-rule.ts';
import type { PresentedCertificate } from '../../domain/verified-token.ts';
import type { RequestContext } from '../../http/request-context.ts';
import type { PeerList } from '../../listener/client-address.ts';
import type { ForwardConfig } from '../exchange.ts';
import type { PolicyContext } from '../policy/authorize.ts';
import type { ResourceMetadata } from '../policy/resource-metadata.ts';
import type { RenderRootPage } from '../policy/root-page.ts';
import type { ServedHosts } from '../policy/served-hosts.ts';
import type { Upstream } from '../upstream/upstream.ts';

/** What the client certificate of a request is read from. */
export type CertificateContext = Pick<RequestContext, 'peer' | 'sourceUnknown' | 'certificate'> & {
  readonly request: { readonly rawHeaders: string[] };
};

/** May a request name this host? */
export type HostCheck = ServedHosts['accepts'];

/** How the proxy of one configuration authorizes and forwards requests, on either path. */
export interface FastPathPolicy extends ForwardConfig {
  readonly policy: PolicyContext;
  readonly realm: string;
  readonly getCertificate: (
    context: CertificateContext,
  ) => PresentedCertificate | undefined | Promise<PresentedCertificate | undefined>;
  /** Undefined: challenges name no metadata. */
  readonly resourceMetadata: ResourceMetadata | undefined;
  /** Undefined: browsers get JSON as well. */
  readonly renderRootPage: RenderRootPage | undefined;
  /** Is it ambiguous which client certificate a front proxy forwards? */
  readonly isCertificateAmbiguous: (context: CertificateContext) => boolean;
  readonly isTrustedPeer: (peer: string) => boolean;
  readonly acceptsHost: HostCheck;
  readonly getUpstream: (rule: AccessRule) => Upstream | undefined;
}

/** One configuration, as the fast path uses it. */
export interface FastPathConfig extends FastPathPolicy {
  readonly trustedProxies: PeerList;
  /** Might this be a request for the token service? */
  readonly isServicePath: (target: string) => boolean;
  /** A request uses this configuration, until `release`. */
  retain(): void;
  release(): void;
}
