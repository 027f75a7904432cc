import type { TokenApiService } from '../authsvc/service.ts';
import type { Settings } from '../config/schema.ts';
import type { AccessRule } from '../domain/access-rule.ts';
import type { VerifiedToken } from '../domain/verified-token.ts';
import type { GrantDeps } from '../grants/deps.ts';
import { offersDeviceFlow } from '../grants/device-grant.ts';
import type { RequestContext } from '../http/request-context.ts';
import { createOpenIdProvider, type OpenIdProvider } from '../identity/openid-provider.ts';
import { createUserDirectory } from '../identity/user-directory.ts';
import { readSettingFile } from '../lib/read-file.ts';
import { StartError } from '../lib/start-error.ts';
import { createRootPage } from '../pages/root-page.ts';
import { createPages } from '../pages/router.ts';
import { sessionCookieName } from '../pages/session.ts';
import { createTheme, type Theme } from '../pages/views/theme.ts';
import type { ClientDocumentReader } from '../ports/client-document-reader.ts';
import type { FastPathConfig } from '../proxy/downstream/fast-path-config.ts';
import type { PolicyContext } from '../proxy/policy/authorize.ts';
import { ForwardAuth } from '../proxy/policy/forward-auth.ts';
import type { Quotas } from '../proxy/policy/quotas.ts';
import { type ProxyDeps, ReverseProxy } from '../proxy/proxy.ts';
import { createAssertionSigner } from '../tokens/assertion.ts';
import { createTokenIssuer } from '../tokens/issuer.ts';
import type { Keyring } from '../tokens/keyring.ts';
import { createSealer } from '../tokens/sealer.ts';
import { SIGNATURE_ALGORITHMS } from '../tokens/signature.ts';
import { createSubjectTokenReader } from '../tokens/trusted-issuers/subject-token-reader.ts';
import {
  createLogoutTokenReader,
  createTrustedTokenReader,
  type TrustedIssuers,
} from '../tokens/trusted-issuers/trusted-issuers.ts';
import {
  type CertificateFiles,
  CertificateFilesError,
  loadCertificateFiles,
} from '../x509/certificate-files.ts';
import { createCertificateValidator } from '../x509/certificate-validator.ts';
import type { ValidityMessages } from '../x509/validity.ts';
import {
  buildGrantPolicy,
  buildIntegrations,
  buildIntrospection,
  buildRules,
  listCertificateFiles,
} from './build-from-settings.ts';
import { type ClientCertificates, createClientCertificates } from './client-certificates.ts';
import { openClientDocuments } from './client-documents.ts';
import { createAssertionVerifier, openClientKeys } from './client-keys.ts';
import { type FetchedCrls, openFetchedCrls } from './crl-fetchers.ts';
import { buildProofVerifier, createTokenRequestProofs } from './dpop.ts';
import { listKeyWarnings, openCheckedKeyring, readKeyFile } from './keys.ts';
import { type OcspResponders, openOcspResponders } from './ocsp-responders.ts';
import { getPagesOrigin } from './pages-origin.ts';
import type { ProcessState, RateLimiters } from './process-state.ts';
import { ServicePaths } from './service-paths.ts';
import { createServiceRouter } from './service-router.ts';
import { checkTlsFileValidity } from './tls-file-validity.ts';
import { openTrustedIssuers } from './trusted-issuers.ts';

/** Everything built from one configuration. A request uses the same one from beginning to end. */
export interface RuntimeConfig {
  readonly settings: Settings;
  readonly files: CertificateFiles;
  /** Of the admin listener and of outgoing connections. */
  readonly tlsFileValidity: ValidityMessages;
  readonly keyWarnings: readonly string[];
  readonly keyring: Keyring;
  /** The key ids, sorted. */
  readonly keyIds: string;
  /** Is this client certificate (DER) accepted now? */
  readonly isCertificateAccepted: ClientCertificates['isAccepted'];
  /** Are the integration of a token, or its issuer and key, still configured? Throws a `Fault` while that is not known. */
  readonly isKnownClient: (bearer: VerifiedToken) => boolean;
  handle(context: RequestContext): void | Promise<void>;
  /** Undefined where the fast path is switched off. */
  readonly fastPath: FastPathConfig | undefined;
  /** Closes once the last request that uses this configuration has ended. */
  retire(): void;
  /** Ends running requests. */
  close(): Promise<void>;
}

/** What the wiring functions below share. */
interface BuildContext {
  readonly settings: Settings;
  readonly processState: ProcessState;
  readonly files: CertificateFiles;
  readonly keyring: Keyring;
  readonly certificates: ClientCertificates;
  readonly grantDeps: GrantDeps;
  readonly rateLimits: RateLimiters;
  readonly trustedIssuers: TrustedIssuers | undefined;
  readonly rules: readonly AccessRule[];
  readonly quotas: Quotas | undefined;
}

const REALM = 'gatehouse';

const getServicePath = ({ service }: Settings): string => service.paths[0] ?? '/authsvc';
const getPagesPath = (settings: Settings): string => `${getServicePath(settings)}/device`;

/** Throws a `StartError` with all problems when the settings cannot be used. */
export async function buildRuntimeConfig(
  settings: Settings,
  processState: ProcessState,
  previous?: RuntimeConfig,
): Promise<RuntimeConfig> {
  const { store, now } = processState;
  const keyFile = readKeyFile(settings);
  using resources = new DisposableStack();
  const fetchedCrls = withStartError(() => openFetchedCrls(settings, processState.crlFetchers));
  resources.defer(() => fetchedCrls.release());
  const files = await loadFiles(settings, processState, previous?.files, fetchedCrls);
  const ocsp = withStartError(() => openOcspResponders(settings, files.issuers, processState.ocspResponders));
  resources.defer(() => ocsp.release());
  const keyring = await openCheckedKeyring(settings, store, now(), keyFile);
  const trusted = await openTrustedIssuers(
    settings,
    processState.issuerKeys,
    processState.getLimiters(settings.limits.rates).tokenGuesses,
  );
  resources.defer(() => trusted.release());
  const clientKeys = await openClientKeys(settings, processState.issuerKeys);
  resources.defer(() => clientKeys.release());
  const clientDocuments = withStartError(() => openClientDocuments(settings, now));
  const rules = buildRules(settings);
  const quotas = processState.quotas.acquire(rules, settings.limits);
  resources.defer(() => quotas.release());
  const context: BuildContext = {
    ...createBuildContext(
      settings,
      processState,
      files,
      ocsp.byIssuer,
      keyring,
      trusted.issuers,
      clientDocuments,
    ),
    rules,
    quotas: quotas.quotas,
  };
  const service = createTokenApiService(context);
  const providers = withStartError(() => createOpenIdProviders(settings));
  const theme = withStartError(() => createTheme(settings.pages));
  const proxy = createRequestProxy(context, theme);
  const router = createServiceRouter({
    settings,
    service,
    oauth: {
      ...service,
      rateLimits: context.rateLimits,
      introspection: buildIntrospection(settings),
      clientAssertions: createAssertionVerifier(settings, clientKeys.keys),
      assertionAlgorithms: SIGNATURE_ALGORITHMS,
      acceptsCertificates: files.issuers.length > 0,
      logoutTokens: trusted.issuers && createLogoutTokenReader(trusted.issuers),
      proofs: createTokenRequestProofs(settings, proxy.policy, processState),
      findAudiences: (resource) => proxy.resourceMetadata?.findAudiences(resource),
    },
    pages: createConfirmationPages(context, service, providers, { theme, proxy }),
    pagesOrigin: getPagesOrigin(settings),
    forwardAuth: createForwardAuthEndpoint(context, proxy),
    proxy,
    keyring,
    now,
  });
  processState.setDigest((text) => context.grantDeps.sealer.digest('limit', text));
  const usage = createUsageTracker(() => {
    trusted.release();
    clientKeys.release();
    fetchedCrls.release();
    ocsp.release();
    quotas.release();
    return Promise.all([
      proxy.close(0),
      context.grantDeps.users.close(),
      clientDocuments.close(),
      ...providers.map((provider) => provider.close()),
    ]);
  });
  resources.move();
  return {
    settings,
    files,
    tlsFileValidity: checkTlsFileValidity(settings, now()),
    keyWarnings: listKeyWarnings(settings, keyFile),
    keyring,
    keyIds: [...keyring.fingerprints.keys()].toSorted().join(' '),
    isCertificateAccepted: (der) => context.certificates.isAccepted(der),
    isKnownClient: (bearer) =>
      bearer.issuer === undefined
        ? context.grantDeps.integrations.has(bearer.clientId)
        : trusted.issuers?.hasKey(bearer) === true,
    fastPath: settings.listen.fastPath
      ? {
          ...proxy.fastPath,
          trustedProxies: settings.trustedProxies,
          isServicePath: router.isServiceTarget,
          retain: usage.retain,
          release: usage.release,
        }
      : undefined,
    handle(requestContext) {
      usage.retain();
      requestContext.response.once('close', usage.release);
      return router.handle(requestContext);
    },
    retire: usage.retire,
    close: usage.close,
  };
}

function createBuildContext(
  settings: Settings,
  processState: ProcessState,
  files: CertificateFiles,
  ocsp: OcspResponders['byIssuer'],
  keyring: Keyring,
  trustedIssuers: TrustedIssuers | undefined,
  clientDocuments: ClientDocumentReader,
): Omit<BuildContext, 'rules' | 'quotas'> {
  const { store, log, now } = processState;
  const { issuers, crls } = files;
  const { requireCrl, requireClientAuth, asciiNames, forwardedFrom, forwardedHeader } = settings.certificates;
  const certificateValidator = createCertificateValidator({
    issuers,
    crls,
    requireCrl,
    requireClientAuth,
    asciiNames,
    ocsp,
  });
  const sealer = createSealer(keyring, now);
  const grantDeps: GrantDeps = {
    store,
    users: withStartError(() =>
      createUserDirectory(settings.directories, undefined, (directory, groups) =>
        log.warn('groups_truncated', {
          directory,
          groups,
          note: 'a user is in more groups than this; the other groups are ignored: narrow ldap.groups.filter or base',
        }),
      ),
    ),
    certificateValidator,
    tokenIssuer: createTokenIssuer({
      keyring,
      publicUrl: settings.publicUrl,
      cacheSize: settings.tokens.cacheSize,
      claims: new Set(settings.tokens.claims),
      grants: store.grants,
    }),
    ...(trustedIssuers !== undefined && { subjectTokens: createSubjectTokenReader(trustedIssuers) }),
    clientDocuments,
    sealer,
    integrations: buildIntegrations(settings, issuers),
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
  const rateLimits = processState.getLimiters(settings.limits.rates);
  return { settings, processState, files, keyring, certificates, grantDeps, rateLimits, trustedIssuers };
}

function createTokenApiService(buildContext: BuildContext): TokenApiService {
  const { settings, processState, certificates, grantDeps, rateLimits } = buildContext;
  return {
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
  };
}

function createConfirmationPages(
  { settings, processState, certificates, grantDeps, rateLimits }: BuildContext,
  service: TokenApiService,
  providers: readonly OpenIdProvider[],
  { theme, proxy }: { readonly theme: Theme; readonly proxy: ReverseProxy },
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
      findAudiences: (resource) => proxy.resourceMetadata?.findAudiences(resource),
      isIssuerPath: (path) => issuerPaths.has(path.toLowerCase()),
    },
  });
}

/** Only proxied requests accept the tokens of trusted issuers; the token API accepts its own. */
function createTokenReader({
  settings,
  grantDeps,
  trustedIssuers,
}: BuildContext): PolicyContext['readAccessToken'] {
  const { tokenIssuer } = grantDeps;
  if (trustedIssuers === undefined) return (token, at) => tokenIssuer.readAccessToken(token, at);
  const { read } = createTrustedTokenReader(trustedIssuers, settings.tokens.cacheSize);
  if (!trustedIssuers.introspects)
    return (token, at) => tokenIssuer.readAccessToken(token, at) ?? read(token, at);
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

function buildRootPage(
  { settings, grantDeps }: BuildContext,
  theme: Theme,
): NonNullable<ProxyDeps['renderRootPage']> {
  const { url, host } = getPagesOrigin(settings);
  const base = `${host === undefined ? '' : url}${getPagesPath(settings)}`;
  return createRootPage({
    theme,
    ...(offersDeviceFlow(grantDeps) && { deviceUrl: base }),
    ...(theme.myGrants && { grantsUrl: `${base}/grants` }),
  });
}

function createRequestProxy(buildContext: BuildContext, theme: Theme): ReverseProxy {
  const { settings, processState, keyring, certificates, grantDeps, rules, quotas } = buildContext;
  const { store, now, log, metrics } = processState;
  const { integrations } = grantDeps;
  for (const { name } of rules) metrics.registerRule(name);
  for (const name of Object.keys(settings.upstreams)) metrics.upstream(name);
  const signAssertion = createAssertionSigner(keyring, settings.publicUrl);
  return withStartError(
    () =>
      new ReverseProxy({
        rules,
        quotas,
        upstreams: settings.upstreams,
        registry: processState.upstreams,
        signAssertion: (caller, audience) => signAssertion(caller, audience, now()),
        publicUrl: settings.publicUrl,
        pagesHost: getPagesOrigin(settings).host,
        hosts: settings.hosts,
        resourceMetadata: buildResourceMetadata(settings),
        realm: REALM,
        renderRootPage: buildRootPage(buildContext, theme),
        headers: buildHeaderSettings(settings),
        maxBodyBytes: settings.limits.body,
        readAccessToken: createTokenReader(buildContext),
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

function buildResourceMetadata(settings: Settings): ProxyDeps['resourceMetadata'] {
  const { enabled, ...rest } = settings.resourceMetadata;
  if (!enabled) return undefined;
  const servicePaths = new ServicePaths(settings);
  return {
    ...rest,
    issuers: new Map(Object.entries(settings.trustedIssuers).map(([name, { issuer }]) => [name, issuer])),
    bindsCertificates: settings.integrations.some(({ bindToCertificate }) => bindToCertificate),
    ...(settings.dpop.enabled && { proofAlgorithms: settings.dpop.algorithms }),
    isServicePath: (path) => servicePaths.includes(path),
  };
}

function createForwardAuthEndpoint(
  { settings, processState: { now, log }, certificates, quotas }: BuildContext,
  { policy, resourceMetadata }: ReverseProxy,
): ForwardAuth {
  const servicePaths = new ServicePaths(settings);
  return new ForwardAuth({
    policy,
    realm: REALM,
    headers: buildHeaderSettings(settings),
    isTrustedPeer: settings.trustedProxies.includes,
    // The certificate of the connection is the front proxy's own; its client's is only in the header.
    getCertificate: (context) => certificates.validate(certificates.getForwarded(context)),
    isCertificateAmbiguous: certificates.isAmbiguous,
    isServicePath: (path) => servicePaths.includes(path),
    resourceMetadata,
    quotas,
    now,
    log,
  });
}

/** Counts the requests that use a configuration; a retired one is closed with its last request. */
function createUsageTracker(closeAll: () => Promise<unknown>) {
  let activeRequests = 0;
  let isRetired = false;
  let closing: Promise<unknown> | undefined;
  const close = async (): Promise<void> => {
    closing ??= closeAll();
    await closing;
  };
  const closeIfUnused = (): void => {
    if (isRetired && activeRequests === 0) void close();
  };
  return {
    retain: (): void => {
      activeRequests += 1;
    },
    release: (): void => {
      activeRequests -= 1;
      closeIfUnused();
    },
    retire: (): void => {
      isRetired = true;
      closeIfUnused();
    },
    close,
  };
}

export function createOpenIdProviders({ signIn }: Settings): readonly OpenIdProvider[] {
  return Object.entries(signIn.openid).map(([name, { ca, ...provider }]) =>
    createOpenIdProvider(name, {
      ...provider,
      ...(ca !== undefined && { ca: readSettingFile(`signIn.openid.${name}.ca`, ca) }),
    }),
  );
}

function withStartError<T>(create: () => T): T {
  try {
    return create();
  } catch (error) {
    throw new StartError([(error as Error).message], { cause: error });
  }
}

async function loadFiles(
  settings: Settings,
  { now, crlFiles }: ProcessState,
  current: CertificateFiles | undefined,
  fetchedCrls: FetchedCrls,
): Promise<CertificateFiles> {
  try {
    return await loadCertificateFiles(listCertificateFiles(settings), now(), {
      crlFiles,
      current,
      openCrlSources: (issuers) => fetchedCrls.open(issuers),
    });
  } catch (error) {
    if (error instanceof CertificateFilesError) throw new StartError(error.problems);
    throw error;
  }
}
