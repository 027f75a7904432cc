import { answerAuthsvc } from '../authsvc/router.ts';
import type { Service } from '../authsvc/service.ts';
import type { Settings } from '../config/schema.ts';
import { createLook } from '../confirm/look.ts';
import { createConfirmPages } from '../confirm/pages.ts';
import { sessionCookie } from '../confirm/session.ts';
import { readTarget } from '../domain/request-target.ts';
import { hostName } from '../domain/rule-matcher.ts';
import type { GrantDesk } from '../grants/desk.ts';
import type { Call } from '../http/call.ts';
import { type OpenIdProvider, openIdProvider } from '../identity/openid.ts';
import { createPeople, textIn } from '../identity/people.ts';
import { answerJwks, JWKS_PATH } from '../oauth/jwks.ts';
import { answerOpenApi, OPENAPI_PATH, openApiOf } from '../oauth/openapi.ts';
import { answerMetadata, answerOAuth, OAUTH_PATH } from '../oauth/router.ts';
import type { OAuthService } from '../oauth/service.ts';
import { createCheck } from '../proxy/check.ts';
import type { CertificateCall, FastGeneration } from '../proxy/fast/generation.ts';
import { createProxy, type Proxy } from '../proxy/proxy.ts';
import { readHead } from '../proxy/request-head.ts';
import {
  type CertificateFiles,
  CertificateFilesError,
  loadCertificateFiles,
} from '../tls/certificate-files.ts';
import { createCertificateJudge } from '../tls/certificate-judge.ts';
import { createAsserter } from '../tokens/assertion.ts';
import type { Keyring } from '../tokens/keyring.ts';
import { createMint } from '../tokens/mint.ts';
import { createSealer } from '../tokens/sealer.ts';
import { createCallCertificates } from './call-certificates.ts';
import { keyWarnings, openKeys, readKeys } from './keys.ts';
import { pagesOriginOf } from './pages-origin.ts';
import type { Permanent } from './permanent.ts';
import { certificateFilesOf, integrationsOf, introspectionOf, policyOf, rulesOf } from './registry.ts';
import { checkMatcher, metadataMatcher, ownPaths, serviceLookalike, servicePaths } from './service-paths.ts';
import { StartError } from './start-error.ts';

/** One configuration, built whole: a request sees exactly one of them from its beginning to its end. */
export interface Generation {
  readonly settings: Settings;
  readonly files: CertificateFiles;
  /** What works today and will not for ever. */
  readonly keyWarnings: readonly string[];
  readonly keyring: Keyring;
  /** The names of its keys. */
  readonly keys: string;
  /** Is this client certificate (DER) accepted now? */
  readonly acceptsCertificate: (der: Uint8Array) => boolean;
  handle(call: Call): void | Promise<void>;
  /** For the fast lane; undefined where it is switched off. */
  readonly fast: FastGeneration | undefined;
  /** Another one is in force: closes when the last request that began with this one has ended, however long it streams. */
  retire(): void;
  /** Ends what is still running. */
  close(): Promise<void>;
}

/** Builds the new house beside the old one. Throws a `StartError` with every problem, and leaves nothing behind. */
export async function buildGeneration(
  settings: Settings,
  permanent: Permanent,
  before?: Generation,
): Promise<Generation> {
  const { store, log, now } = permanent;
  const keyFile = readKeys(settings);
  const files = await loadFiles(settings, permanent, before?.files);
  const keyring = await openKeys(settings, store, now(), keyFile);
  const mint = createMint({
    keyring,
    publicUrl: settings.publicUrl,
    remembered: settings.tokens.remembered,
    grants: store.grants,
  });
  const asserter = createAsserter(keyring, settings.publicUrl);
  const { issuers, crls } = files;
  const integrations = integrationsOf(settings, issuers);
  const { requireCrl, requireClientAuth, asciiNames, forwardedFrom, forwardedHeader } = settings.certificates;
  const { rates } = settings.limits;
  const rules = rulesOf(settings);
  for (const { name } of rules) permanent.metrics.rule(name);
  for (const name of Object.keys(settings.upstreams)) permanent.metrics.upstream(name);

  const judge = createCertificateJudge({ issuers, crls, requireCrl, requireClientAuth, asciiNames });
  const certificates = createCallCertificates({ forwardedFrom, forwardedHeader, judge, now });
  const isAmbiguous = (call: CertificateCall): boolean => certificates.isAmbiguous(call);

  const sealer = createSealer(keyring, now);
  const desk: GrantDesk = {
    store,
    people: usable(() =>
      createPeople(settings.directories, undefined, (directory, groups) =>
        log.warn('groups_cut', {
          directory,
          groups,
          note: 'somebody signed in who is in more groups than these; the rest does not count: narrow ldap.groups.filter or base',
        }),
      ),
    ),
    certificates: judge,
    mint,
    sealer,
    integrations,
    policy: policyOf(settings),
    pace: permanent.pace,
    pending: permanent.pending,
    outages: (at, rotatedAt) => permanent.serving.outages(at, rotatedAt),
    mayRecord: permanent.mayRecord,
    now,
    log,
  };

  const [servicePath = '/authsvc'] = settings.service.paths;
  const pagesOrigin = pagesOriginOf(settings);
  const service: Service = {
    desk,
    publicUrl: settings.publicUrl,
    pagesUrl: pagesOrigin.url,
    path: servicePath,
    bodyTimeout: settings.limits.headerTimeout,
    rates: {
      token: permanent.limiter('token', rates.token),
      certificate: permanent.limiter('certificate', rates.certificate),
      device: permanent.limiter('device', rates.device),
      revoke: permanent.limiter('revoke', rates.revoke),
      verify: permanent.limiter('verify', rates.verify),
    },
    certificateOf: (call) => certificates.of(call),
    shownCertificate: (call) => certificates.judged(certificates.of(call)),
    isAmbiguous,
    isPressed: permanent.isPressed,
  };
  const oauth: OAuthService = {
    ...service,
    rates: { ...service.rates, introspect: permanent.limiter('introspect', rates.introspect) },
    introspection: introspectionOf(settings),
    certificates: issuers.length > 0,
  };
  const providers = usable(() => providersOf(settings));
  const pages = createConfirmPages({
    desk,
    look: usable(() => createLook(settings.pages)),
    providers,
    basePath: `${servicePath}/device`,
    url: pagesOrigin.url,
    sessionLifetime: settings.device.sessionLifetime,
    bodyTimeout: settings.limits.headerTimeout,
    memory: permanent.confirm,
    certificateOf: (call) => service.certificateOf(call)?.der,
    isAmbiguous,
    rates: {
      page: permanent.limiter('page', rates.page),
      codeGuesses: permanent.limiter('codeGuesses', rates.codeGuesses),
      networkCodeGuesses: permanent.limiter('networkCodeGuesses', rates.networkCodeGuesses),
      allCodeGuesses: permanent.limiter('allCodeGuesses', rates.allCodeGuesses),
      identityCodeGuesses: permanent.limiter('identityCodeGuesses', rates.identityCodeGuesses),
    },
  });
  const headers = { ...settings.headers, cookie: sessionCookie(pagesOrigin.url) };
  const proxy = usable(() =>
    createProxy({
      rules,
      upstreams: settings.upstreams,
      ways: permanent.upstreams,
      assert: (caller, audience) => asserter.assert(caller, audience, now()),
      publicUrl: settings.publicUrl,
      pagesHost: pagesOrigin.host,
      hosts: settings.hosts,
      realm: 'gatehouse',
      headers,
      maxBodyBytes: settings.limits.body,
      readAccess: (token, at) => mint.readAccess(token, at),
      revocations: store.revocations,
      integrationOf: (clientId) => integrations.get(clientId),
      certificateOf: (call) => certificates.judged(certificates.of(call)),
      isAmbiguous,
      trusts: settings.trustedProxies.includes,
      streams: permanent.streams,
      endStreams: settings.tokens.endStreams,
      now,
      log,
    }),
  );

  const check = createCheck({
    desk: proxy.desk,
    realm: 'gatehouse',
    headers,
    trusts: settings.trustedProxies.includes,
    // The connection and its certificate are the gateway's: only a header that it writes is about its client.
    certificateOf: (call) => certificates.judged(certificates.forwarded(call)),
    isAmbiguous,
    isServicePath: ownPaths(settings),
    now,
    log,
  });
  const looksOurs = serviceLookalike(settings);
  const openApi = openApiOf(settings.publicUrl, servicePath);
  const isOwnPath = ownPaths(settings);
  const afterCheck = checkMatcher(settings);
  const publicHost = hostName(new URL(settings.publicUrl).host);
  const readOwn = ownTarget(proxy);
  const below = servicePaths(settings);
  const metadataIssuer = metadataMatcher(settings);
  permanent.hideBy((text) => sealer.digest('limit', text));
  let running = 0;
  let retired = false;
  let closing: Promise<unknown> | undefined;
  /** Once, however often it is said: what has been closed cannot be closed again. */
  const close = async (): Promise<void> => {
    closing ??= Promise.all([proxy.close(0), desk.people.close(), ...providers.map((one) => one.close())]);
    await closing;
  };
  const begun = (): void => {
    running += 1;
  };
  const ended = (): void => {
    running -= 1;
    if (retired && running === 0) void close();
  };
  const { isOwnAuthority: isOwn } = proxy.desk;
  /** What the full lane would not give to the proxy. */
  const isElsewhere = (url: string): boolean => {
    if (!looksOurs(url)) return false;
    const reading = readTarget(url, { method: 'GET', isOwn, encodedSlash: true });
    return afterCheck(url) !== undefined || (reading.kind === 'target' && isOwnPath(reading.target.path));
  };
  // A call that is to be recorded as a span needs it before it is sent on.
  const isFast = settings.listen.fastLane && !permanent.isTraced;
  return {
    settings,
    files,
    keyWarnings: keyWarnings(settings, keyFile),
    keyring,
    keys: [...keyring.fingerprints.keys()].toSorted().join(' '),
    acceptsCertificate: (der) => certificates.accepts(der),
    fast: isFast
      ? {
          ...proxy.fast,
          trustedProxies: settings.trustedProxies,
          looksOurs: isElsewhere,
          enter: begun,
          leave: ended,
        }
      : undefined,
    handle(call) {
      begun();
      call.response.once('close', ended);
      const { url = '' } = call.request;
      if (!looksOurs(url)) return proxy.handle(call);
      const checked = afterCheck(url);
      if (checked !== undefined) return check.handle(call, checked);
      const asked = readOwn(call);
      if (asked === undefined) return proxy.handle(call);
      const { path, host } = asked;
      const rest = below(path);
      const isPage = rest === '/device' || rest?.startsWith('/device/') === true;
      // The pages' own host serves the pages and nothing else; the proxy refuses the rest.
      if (host === pagesOrigin.host && !isPage) return proxy.handle(call);
      if (rest === undefined) {
        const issuer = metadataIssuer(path);
        return issuer === undefined ? proxy.handle(call) : answerMetadata(oauth, call, issuer);
      }
      if (isPage) {
        call.note({ rule: 'confirm' });
        const place = rest.slice('/device'.length);
        if (pagesOrigin.host === undefined || host === pagesOrigin.host) return pages.handle(call, place);
        return pages.refuseElsewhere(call, place, host === publicHost);
      }
      if (rest === JWKS_PATH) return answerJwks(keyring, call, now());
      if (rest === OPENAPI_PATH) return answerOpenApi(openApi, call);
      if (rest === OAUTH_PATH || rest.startsWith(`${OAUTH_PATH}/`)) return answerOAuth(oauth, call, rest);
      return answerAuthsvc(service, call, rest);
    },
    retire() {
      retired = true;
      if (running === 0) void close();
    },
    close,
  };
}

function providersOf({ signIn }: Settings): readonly OpenIdProvider[] {
  return Object.entries(signIn.openid).map(([name, { ca, ...provider }]) =>
    openIdProvider(name, {
      ...provider,
      ...(ca !== undefined && { ca: textIn(ca, `signIn.openid.${name}.ca`) }),
    }),
  );
}

/** What a room cannot work with is told to the operator as a problem of the configuration. */
function usable<T>(make: () => T): T {
  try {
    return make();
  } catch (error) {
    throw new StartError([(error as Error).message], { cause: error });
  }
}

async function loadFiles(
  settings: Settings,
  { now, revocationFiles: revocations }: Permanent,
  before: CertificateFiles | undefined,
): Promise<CertificateFiles> {
  try {
    return await loadCertificateFiles(certificateFilesOf(settings), now(), { revocations, before });
  } catch (error) {
    if (error instanceof CertificateFilesError) throw new StartError(error.problems);
    throw error;
  }
}

/** Path and host name of a request; undefined for an ambiguous head or target, or a host that is not served: the proxy refuses it. */
function ownTarget({ desk, acceptsHost }: Proxy) {
  const { isOwnAuthority: isOwn } = desk;
  return ({ request, peer }: Call): { readonly path: string; readonly host: string } | undefined => {
    const reading = readTarget(request.url ?? '', {
      method: request.method ?? '',
      isOwn,
      encodedSlash: true,
    });
    const head = readHead(request);
    if (reading.kind !== 'target' || !head.ok) return undefined;
    const { path, authority } = reading.target;
    if (authority === undefined && !acceptsHost(head.head.host, peer, request.socket)) return undefined;
    return { path, host: hostName(authority ?? head.head.host) };
  };
}
