import type { TokenApiService } from '../authsvc/token-api.ts';
import type { Settings } from '../config/schema.ts';
import type { GrantDeps } from '../grants/deps.ts';
import { offersDeviceFlow } from '../grants/device-grant.ts';
import type { ResourceScope } from '../lib/shared-resources.ts';
import type { OAuthService } from '../oauth/service.ts';
import { createRootPage } from '../pages/root-page.ts';
import { createPages } from '../pages/router.ts';
import { sessionCookieName } from '../pages/session.ts';
import type { PolicyContext } from '../proxy/policy/authorize.ts';
import { ExtAuthz } from '../proxy/policy/ext-authz.ts';
import { ForwardAuth } from '../proxy/policy/forward-auth.ts';
import { RequestCheck } from '../proxy/policy/request-check.ts';
import { type ProxyDeps, ReverseProxy } from '../proxy/proxy.ts';
import { createAssertionSigner } from '../tokens/assertion.ts';
import { createTokenIssuer } from '../tokens/issuer.ts';
import { SIGNATURE_ALGORITHMS } from '../tokens/jwt.ts';
import { PROOF_ALGORITHMS } from '../tokens/proof-verifier.ts';
import { createSealer } from '../tokens/sealer.ts';
import { TOKEN_CACHE_SIZE } from '../tokens/token-cache.ts';
import {
  createLogoutTokenReader,
  createSubjectTokenReader,
  createTrustedTokenReader,
} from '../tokens/trusted-issuers/trusted-issuers.ts';
import { createCertificateValidator } from '../x509/certificate-validator.ts';
import { buildGrantPolicy, buildIntegrations, buildIntrospection } from './build-from-settings.ts';
import { createClientCertificates } from './client-certificates.ts';
import { type ConfigResources, withStartError } from './config-resources.ts';
import { buildProofVerifier, createTokenRequestProofs } from './dpop.ts';
import type { ProcessState } from './process-state.ts';
import { getPagesOrigin, ServicePaths } from './service-paths.ts';
import { createAssertionVerifier } from './trusted-issuers.ts';

/** What the handlers of one configuration are created from. */
export type BuildContext = ReturnType<typeof createBuildContext>;

const getServicePath = ({ service }: Settings): string => service.paths[0] ?? '/authsvc';
const getPagesPath = (settings: Settings): string => `${getServicePath(settings)}/device`;

export function createBuildContext(
  settings: Settings,
  processState: ProcessState,
  scope: ResourceScope,
  opened: ConfigResources,
) {
  const { store, log, now } = processState;
  const { files, keyring, trustedIssuers, ocsp } = opened;
  const { issuers, crls } = files;
  const certificateValidator = createCertificateValidator({ ...settings.certificates, issuers, crls, ocsp });
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
  const certificates = createClientCertificates({ ...settings.certificates, certificateValidator, now });
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

/** Opens the upstreams. */
export function createRequestProxy(context: BuildContext): ReverseProxy {
  const { settings, processState, scope, keyring, certificates, grantDeps, rules, quotas } = context;
  const { store, now, log, metrics } = processState;
  const { integrations } = grantDeps;
  scope.onActivate(() => {
    for (const { name } of rules) metrics.registerRule(name);
    for (const name of Object.keys(settings.upstreams)) metrics.upstream(name);
  });
  const signAssertion = createAssertionSigner(keyring, settings.publicUrl);
  return withStartError(
    () =>
      new ReverseProxy({
        rules,
        quotas,
        upstreams: settings.upstreams,
        registry: processState.upstreams,
        scope,
        signAssertion: (caller, audience) => signAssertion(caller, audience, now()),
        publicUrl: settings.publicUrl,
        pagesHost: getPagesOrigin(settings).host,
        hosts: settings.hosts,
        resourceMetadata: buildResourceMetadata(settings),
        renderRootPage: buildRootPage(context),
        headers: buildHeaderSettings(settings),
        maxBodyBytes: settings.limits.body,
        readAccessToken: createTokenReader(context),
        proofVerifier: buildProofVerifier(settings, grantDeps.sealer, processState),
        revocations: store.revocations,
        getIntegration: (clientId) => integrations.get(clientId),
        getCertificate: (context) => certificates.validate(certificates.get(context)),
        isCertificateAmbiguous: certificates.isAmbiguous,
        isTrustedPeer: settings.trustedProxies.includes,
        streams: processState.streams,
        endStreams: settings.tokens.endStreams,
        now,
        log,
      }),
  );
}

/** Only proxied requests accept the tokens of trusted issuers; the token API accepts its own. */
function createTokenReader({ grantDeps, trustedIssuers }: BuildContext): PolicyContext['readAccessToken'] {
  const { tokenIssuer } = grantDeps;
  if (trustedIssuers === undefined) return (token, at) => tokenIssuer.readAccessToken(token, at);
  const { read } = createTrustedTokenReader(trustedIssuers);
  if (!trustedIssuers.introspects) return (token, at) => tokenIssuer.readAccessToken(token, at) ?? read(token, at);
  // What is rejected with a reason is a JWT.
  return (token, at, accepted, getClientAddress) =>
    tokenIssuer.readAccessToken(token, at) ??
    read(token, at) ??
    trustedIssuers.introspect(token, at, accepted, getClientAddress);
}

const buildHeaderSettings = (settings: Settings) => {
  const { name, email, groups, ...headers } = settings.headers;
  return {
    ...headers,
    name: name === false ? undefined : name,
    email: email === false ? undefined : email,
    groups: groups === false ? undefined : groups,
    cookie: sessionCookieName(getPagesOrigin(settings).url),
  };
};

function buildRootPage({ settings, grantDeps, theme }: BuildContext): NonNullable<ProxyDeps['renderRootPage']> {
  const { url, host } = getPagesOrigin(settings);
  const base = `${host === undefined ? '' : url}${getPagesPath(settings)}`;
  return createRootPage({
    theme,
    ...(offersDeviceFlow(grantDeps) && { deviceUrl: base }),
    ...(theme.myGrants && { grantsUrl: `${base}/grants` }),
  });
}

function buildResourceMetadata(settings: Settings): ProxyDeps['resourceMetadata'] {
  const { enabled, ...rest } = settings.resourceMetadata;
  if (!enabled) return undefined;
  const servicePaths = new ServicePaths(settings);
  return {
    ...rest,
    issuers: new Map(Object.entries(settings.trustedIssuers).map(([name, { issuer }]) => [name, issuer])),
    bindsCertificates: settings.integrations.some(({ bindToCertificate }) => bindToCertificate),
    ...(settings.dpop.enabled && { proofAlgorithms: PROOF_ALGORITHMS }),
    isServicePath: (path) => servicePaths.includes(path),
  };
}

export function createRequestCheck(
  { settings, processState: { now, log }, certificates, quotas }: BuildContext,
  { policy, resourceMetadata }: ReverseProxy,
): RequestCheck {
  const servicePaths = new ServicePaths(settings);
  return new RequestCheck({
    policy,
    isTrustedPeer: settings.trustedProxies.includes,
    // The certificate of the connection is the front proxy's own; its client's is only in the header.
    getCertificate: (context) => certificates.validate(certificates.getForwarded(context)),
    isCertificateAmbiguous: certificates.isAmbiguous,
    isServicePath: (path) => servicePaths.includes(path),
    maxTargetLength: settings.limits.url,
    resourceMetadata,
    quotas,
    now,
    log,
  });
}

export const createForwardAuthEndpoint = ({ settings }: BuildContext, check: RequestCheck): ForwardAuth =>
  new ForwardAuth(check, buildHeaderSettings(settings));

export const createExtAuthzEndpoint = (
  { settings }: BuildContext,
  check: RequestCheck,
  { config }: ReverseProxy,
): ExtAuthz =>
  new ExtAuthz({
    check,
    headers: buildHeaderSettings(settings),
    headerRules: config.headers,
    trustedProxies: settings.trustedProxies,
    // Target and host occur twice in it.
    maxMessageBytes: 2 * settings.limits.headers + MAX_ATTRIBUTES_BYTES,
    bodyTimeout: settings.limits.headerTimeout,
  });

/** How many bytes a `CheckRequest` has besides the header section: it contains the certificate, and metadata, which is not used. */
const MAX_ATTRIBUTES_BYTES = 32_768;
