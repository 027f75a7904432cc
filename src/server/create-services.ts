import type { TokenApiService } from '../authsvc/token-api.ts';
import type { Settings } from '../config/schema.ts';
import type { GrantDeps } from '../grants/deps.ts';
import type { ResourceScope } from '../lib/shared-resources.ts';
import type { OAuthService } from '../oauth/service.ts';
import { createPages } from '../pages/router.ts';
import type { ReverseProxy } from '../proxy/proxy.ts';
import { createTokenIssuer } from '../tokens/issuer.ts';
import { createSealer } from '../tokens/sealer.ts';
import { SIGNATURE_ALGORITHMS } from '../tokens/signature.ts';
import { TOKEN_CACHE_SIZE } from '../tokens/token-cache.ts';
import { createSubjectTokenReader } from '../tokens/trusted-issuers/subject-token-reader.ts';
import { createLogoutTokenReader } from '../tokens/trusted-issuers/trusted-issuers.ts';
import { createCertificateValidator } from '../x509/certificate-validator.ts';
import { buildGrantPolicy, buildIntegrations, buildIntrospection } from './build-from-settings.ts';
import { type ClientCertificates, createClientCertificates } from './client-certificates.ts';
import { createAssertionVerifier } from './client-keys.ts';
import type { ConfigResources } from './config-resources.ts';
import { createTokenRequestProofs } from './dpop.ts';
import { getPagesOrigin } from './pages-origin.ts';
import type { ProcessState } from './process-state.ts';

/** What the handlers of one configuration are created from. */
export interface BuildContext extends ConfigResources {
  readonly settings: Settings;
  readonly processState: ProcessState;
  readonly scope: ResourceScope;
  readonly certificates: ClientCertificates;
  readonly grantDeps: GrantDeps;
}

const getServicePath = ({ service }: Settings): string => service.paths[0] ?? '/authsvc';
export const getPagesPath = (settings: Settings): string => `${getServicePath(settings)}/device`;

export function createBuildContext(
  settings: Settings,
  processState: ProcessState,
  scope: ResourceScope,
  opened: ConfigResources,
): BuildContext {
  const { store, log, now } = processState;
  const { files, keyring, trustedIssuers, ocsp } = opened;
  const { forwardedFrom, forwardedHeader, requireCrl, requireClientAuth, asciiNames } = settings.certificates;
  const certificateValidator = createCertificateValidator({
    issuers: files.issuers,
    crls: files.crls,
    requireCrl,
    requireClientAuth,
    asciiNames,
    ocsp,
  });
  const grantDeps: GrantDeps = {
    store,
    users: opened.users,
    certificateValidator,
    tokenIssuer: createTokenIssuer({
      keyring,
      publicUrl: settings.publicUrl,
      cacheSize: TOKEN_CACHE_SIZE,
      claims: new Set(settings.tokens.claims),
      grants: store.grants,
    }),
    ...(trustedIssuers !== undefined && { subjectTokens: createSubjectTokenReader(trustedIssuers) }),
    clientDocuments: opened.clientDocuments,
    sealer: createSealer(keyring, now),
    integrations: buildIntegrations(settings, files.issuers),
    policy: buildGrantPolicy(settings),
    pollLimiter: processState.pollLimiter,
    pendingLimiter: processState.pendingLimiter,
    getOutages: (at, rotatedAt) => processState.outageTracker.getOutages(at, rotatedAt),
    isAuditAvailable: processState.isAuditAvailable,
    now,
    log,
  };
  const certificates = createClientCertificates({
    forwardedFrom,
    forwardedHeader,
    certificateValidator,
    now,
  });
  return { ...opened, settings, processState, scope, certificates, grantDeps };
}

export const createTokenApiService = ({
  settings,
  processState,
  certificates,
  grantDeps,
  rateLimits,
}: BuildContext): TokenApiService => ({
  grantDeps,
  publicUrl: settings.publicUrl,
  pagesUrl: getPagesOrigin(settings).url,
  path: getServicePath(settings),
  bodyTimeout: settings.limits.headerTimeout,
  rateLimits,
  getCertificate: certificates.get,
  getPresentedCertificate: (context) => certificates.validate(certificates.get(context)),
  isCertificateAmbiguous: certificates.isAmbiguous,
  isOverloaded: processState.isOverloaded,
});

export const createOAuthService = (
  { settings, processState, rateLimits, files, clientKeys, trustedIssuers }: BuildContext,
  service: TokenApiService,
  { policy, resourceMetadata }: ReverseProxy,
): OAuthService => ({
  ...service,
  rateLimits,
  introspection: buildIntrospection(settings),
  clientAssertions: createAssertionVerifier(settings, clientKeys),
  assertionAlgorithms: SIGNATURE_ALGORITHMS,
  acceptsCertificates: files.issuers.length > 0,
  logoutTokens: trustedIssuers && createLogoutTokenReader(trustedIssuers),
  proofs: createTokenRequestProofs(settings, policy, processState),
  findAudiences: (resource) => resourceMetadata?.findAudiences(resource),
});

export function createConfirmationPages(
  { settings, processState, certificates, grantDeps, rateLimits, theme, providers }: BuildContext,
  service: TokenApiService,
  { resourceMetadata }: ReverseProxy,
): ReturnType<typeof createPages> {
  const issuerPaths = new Set(settings.service.paths.map((path) => path.toLowerCase()));
  return createPages({
    grantDeps,
    theme,
    providers,
    basePath: getPagesPath(settings),
    url: service.pagesUrl,
    sessionLifetime: settings.device.sessionLifetime,
    bodyTimeout: service.bodyTimeout,
    attemptLimits: processState.attemptLimits,
    getCertificate: (context) => certificates.get(context)?.der,
    isCertificateAmbiguous: certificates.isAmbiguous,
    rateLimits,
    authorization: {
      publicUrl: settings.publicUrl,
      findAudiences: (resource) => resourceMetadata?.findAudiences(resource),
      isIssuerPath: (path) => issuerPaths.has(path.toLowerCase()),
    },
  });
}
