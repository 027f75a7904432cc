import type { Settings } from '../config/schema.ts';
import { getIssuerName } from '../config/sections/identity.ts';
import { type ConfiguredLimit, listRouteLimits } from '../config/units.ts';
import { type AccessRule, DEFAULT_AUDIENCE, parsePattern, type Requirement } from '../domain/access-rule.ts';
import { isAllowedHost, parseClientIdUrl } from '../domain/client-document.ts';
import type { CorsPolicy } from '../domain/cors.ts';
import type { Integration } from '../domain/integration.ts';
import type { RouteLimit } from '../domain/route-limit.ts';
import type { GrantPolicy } from '../grants/deps.ts';
import { normalizeIdentity } from '../identity/user-id.ts';
import { createBoundedCache } from '../lib/bounded-cache.ts';
import type { ApprovedIssuer } from '../x509/approved-issuer.ts';
import type { CertificateFilePaths } from '../x509/certificate-files.ts';

export function buildIntegrations(
  settings: Settings,
  issuers: readonly ApprovedIssuer[],
): ReadonlyMap<string, Integration> {
  return createIntegrationMap(
    settings.integrations.map(({ issuers: issuerNames, clientSecretHashes, clientDocuments, ...rest }) => {
      const { jwks, jwksFile: _file, jwksUri, jwksCa: _ca, dpop, ...integration } = rest;
      return [
        integration.clientId,
        {
          name: integration.clientId,
          accessLifetime: settings.tokens.accessLifetime,
          grantLifetime: settings.tokens.grantLifetime,
          tokenFormat: settings.tokens.format,
          ...integration,
          secretHashes: clientSecretHashes,
          documentHosts: clientDocuments.hosts,
          requiresProof: dpop === 'required',
          hasKeys: jwks !== undefined || jwksUri !== undefined,
          grants: new Set(integration.grants),
          exchange: integration.exchange.map((entry) => ({
            ...entry,
            claims: new Map(Object.entries(entry.claims)),
          })),
          access: integration.access.map(({ grants, ...entry }) => ({
            ...buildAccessEntry(entry),
            ...(grants !== undefined && { grants: new Set(grants) }),
          })),
          ...(issuerNames !== undefined && {
            issuers: new Set(
              issuers.filter(({ name }) => issuerNames.includes(name)).map(({ keyFingerprint }) => keyFingerprint),
            ),
          }),
        },
      ];
    }),
  );
}

const buildAccessEntry = <T extends Settings['introspection']['access'][number]>(entry: T) => ({
  ...entry,
  groups: new Set(entry.groups),
  identities: new Set(entry.identities.map(normalizeIdentity)),
});

export const buildIntrospection = ({ introspection }: Settings) => ({
  ...introspection,
  access: introspection.access.map(buildAccessEntry),
});

export function buildRules(settings: Settings): AccessRule[] {
  const defaultLimits = listRouteLimits(settings.limits.routes);
  return settings.routes.map((route, index) => {
    const { path, public: isPublic, requires, methods, clients, issuers, audience, cors, rate, ...rest } = route;
    const upstream = settings.upstreams[route.upstream];
    const audiences = audience ?? upstream?.audience;
    const limits = nameLimits(rate === undefined ? defaultLimits : listRouteLimits(rate), isPublic === true);
    const pattern = parsePattern(path);
    if (!pattern.ok) throw new Error(pattern.problem);
    return {
      ...rest,
      name: `routes[${index}] ${path}`,
      pattern: pattern.segments,
      requirement: buildRequirement(path, isPublic, requires),
      ...(upstream?.paths !== undefined && { paths: upstream.paths }),
      ...(methods !== undefined && { methods: new Set(methods) }),
      ...(clients !== undefined && { clients: new Set(clients) }),
      ...(issuers !== undefined && { issuers: new Set(issuers) }),
      ...(audiences !== undefined && { audiences: buildAudiences(settings, audiences) }),
      ...(cors !== undefined && { cors: buildCorsPolicy(cors) }),
      ...(limits.length > 0 && { limits }),
    };
  });
}

const buildAudiences = ({ publicUrl }: Settings, audiences: readonly string[]): ReadonlySet<string> =>
  new Set(audiences.includes(publicUrl) ? [...audiences, DEFAULT_AUDIENCE] : audiences);

/** Without a token, there is no identity and no client. */
function nameLimits(limits: readonly ConfiguredLimit[], isPublic: boolean): RouteLimit[] {
  const counts = new Map<string, number>();
  return limits.map((limit) => {
    const { per: configured = 'identity' } = limit;
    const per = isPublic && configured !== 'route' ? 'address' : configured;
    const count = (counts.get(per) ?? 0) + 1;
    counts.set(per, count);
    return { ...limit, per, name: count === 1 ? per : `${per}-${count}` };
  });
}

const buildCorsPolicy = (cors: NonNullable<Settings['routes'][number]['cors']>): CorsPolicy => ({
  ...cors,
  origins: cors.origins.includes('*') ? 'any' : new Set(cors.origins),
});

function buildRequirement(
  path: string,
  isPublic: boolean | undefined,
  requires: Settings['routes'][number]['requires'] | undefined,
): Requirement {
  if (requires !== undefined)
    return requires === 'any-token' ? { kind: 'any-token' } : { kind: 'scope', scope: requires };
  if (isPublic === true) return { kind: 'public' };
  throw new Error(`routes: ${path} has neither public nor requires`);
}

export const buildGrantPolicy = ({ tokens, device, signIn }: Settings): GrantPolicy => ({
  retryWindow: tokens.refresh.retryWindow,
  reuse: tokens.refresh.reuse,
  supersede: tokens.refresh.supersede,
  groupProviders: new Set(
    Object.entries(signIn.openid).flatMap(([name, { groups }]) => (groups === undefined ? [] : [name])),
  ),
  device: { enabled: device.enabled, codeLifetime: device.codeLifetime, interval: device.interval },
});

export const listCertificateFiles = ({ listen, certificates }: Settings): CertificateFilePaths => ({
  ...(listen.tls !== undefined && { server: { certificate: listen.tls.certificate, key: listen.tls.key } }),
  issuers: certificates.issuers.map((issuer) => ({
    name: getIssuerName(issuer),
    file: issuer.file,
    directory: issuer.directory ?? certificates.directory ?? '',
    identityFrom: issuer.identityFrom ?? certificates.identityFrom,
    ...(issuer.trustDomain !== undefined && { trustDomain: issuer.trustDomain }),
    ...(issuer.dnsDomain !== undefined && { dnsDomain: issuer.dnsDomain }),
  })),
  crls: certificates.crls.filter((entry) => typeof entry === 'string'),
});

const MAX_CACHED = 10_000;

/**
 * The integrations by client id. A URL whose host an integration lists in `clientDocuments.hosts` is a client of its own with the
 * settings of this integration; its redirect URIs are in the document at the URL.
 */
class IntegrationMap extends Map<string, Integration> {
  readonly #templates: readonly Integration[];
  readonly #derived = createBoundedCache<string, Integration>(MAX_CACHED);

  constructor(entries: readonly (readonly [string, Integration])[]) {
    super(entries);
    this.#templates = entries
      .map(([, integration]) => integration)
      .filter(({ documentHosts = [] }) => documentHosts.length > 0);
  }

  override get(clientId: string): Integration | undefined {
    return super.get(clientId) ?? this.#derive(clientId);
  }

  override has(clientId: string): boolean {
    return this.get(clientId) !== undefined;
  }

  #derive(clientId: string): Integration | undefined {
    if (this.#templates.length === 0 || !clientId.startsWith('https://')) return undefined;
    const known = this.#derived.get(clientId);
    if (known !== undefined) return known;
    const url = parseClientIdUrl(clientId);
    const template = url && this.#templates.find(({ documentHosts = [] }) => isAllowedHost(documentHosts, url));
    if (url === undefined || template === undefined) return undefined;
    const integration: Integration = {
      ...template,
      clientId,
      // What the client calls itself proves nothing.
      name: url.host,
      grants: new Set(['code']),
      redirectUris: [],
      secretHashes: [],
      hasKeys: false,
      exchange: [],
      // It requests what the metadata of the API lists (RFC 6749 §3.3: it may get less).
      partialScope: true,
      templateId: template.clientId,
    };
    this.#derived.set(clientId, integration);
    return integration;
  }
}

/** Without `clientDocuments`, a plain map: it is read with every request to the API. */
const createIntegrationMap = (
  entries: readonly (readonly [string, Integration])[],
): ReadonlyMap<string, Integration> =>
  entries.some(([, { documentHosts = [] }]) => documentHosts.length > 0)
    ? new IntegrationMap(entries)
    : new Map(entries);
