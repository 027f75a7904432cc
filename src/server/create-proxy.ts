import type { Settings } from '../config/schema.ts';
import { offersDeviceFlow } from '../grants/device-grant.ts';
import { createRootPage } from '../pages/root-page.ts';
import { sessionCookieName } from '../pages/session.ts';
import type { PolicyContext } from '../proxy/policy/authorize.ts';
import { ForwardAuth } from '../proxy/policy/forward-auth.ts';
import { type ProxyDeps, ReverseProxy } from '../proxy/proxy.ts';
import { createAssertionSigner } from '../tokens/assertion.ts';
import { PROOF_ALGORITHMS } from '../tokens/proof-verifier.ts';
import { createTrustedTokenReader } from '../tokens/trusted-issuers/trusted-issuers.ts';
import { withStartError } from './config-resources.ts';
import { type BuildContext, getPagesPath } from './create-services.ts';
import { buildProofVerifier } from './dpop.ts';
import { getPagesOrigin } from './pages-origin.ts';
import { ServicePaths } from './service-paths.ts';

const REALM = 'gatehouse';

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
  const proxy = withStartError(
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
  return scope.resources.adopt(proxy, () => proxy.close(0));
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

export function createForwardAuthEndpoint(
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
