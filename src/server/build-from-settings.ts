import type { Settings } from '../config/schema.ts';
import { getIssuerName } from '../config/sections/identity.ts';
import { type AccessRule, parsePattern, type Requirement } from '../domain/access-rule.ts';
import type { CorsPolicy } from '../domain/cors.ts';
import type { Integration } from '../domain/integration.ts';
import type { GrantPolicy } from '../grants/deps.ts';
import type { ApprovedIssuer } from '../x509/approved-issuer.ts';
import type { CertificateFilePaths } from '../x509/certificate-files.ts';

export function buildIntegrations(
  settings: Settings,
  issuers: readonly ApprovedIssuer[],
): ReadonlyMap<string, Integration> {
  return new Map(
    settings.integrations.map((integration) => [
      integration.clientId,
      {
        clientId: integration.clientId,
        name: integration.name ?? integration.clientId,
        scope: integration.scope,
        grants: new Set(integration.grants),
        access: integration.access.map((entry) => ({
          groups: new Set(entry.groups),
          identities: new Set(entry.identities),
          ...(entry.directory !== undefined && { directory: entry.directory }),
          ...(entry.scope !== undefined && { scope: entry.scope }),
          ...(entry.grants !== undefined && { grants: new Set(entry.grants) }),
        })),
        accessLifetime: integration.accessLifetime ?? settings.tokens.accessLifetime,
        grantLifetime: integration.grantLifetime ?? settings.tokens.grantLifetime,
        bindToCertificate: integration.bindToCertificate,
        tokenFormat: integration.tokenFormat ?? settings.tokens.format,
        device: integration.device,
        ...(integration.issuers !== undefined && {
          issuers: new Set(
            issuers
              .filter(({ name }) => integration.issuers?.includes(name))
              .map(({ keyFingerprint }) => keyFingerprint),
          ),
        }),
      },
    ]),
  );
}

export const buildIntrospection = ({ introspection }: Settings) => ({
  ...(introspection.requires !== undefined && { requires: introspection.requires }),
  access: introspection.access.map(({ groups, identities, directory }) => ({
    groups: new Set(groups),
    identities: new Set(identities),
    ...(directory !== undefined && { directory }),
  })),
});

export function buildRules(settings: Settings): AccessRule[] {
  return settings.routes.map((route, index) => {
    const pattern = parsePattern(route.path);
    if (!pattern.ok) throw new Error(pattern.problem);
    return {
      name: `routes[${index}] ${route.path}`,
      pattern: pattern.segments,
      requirement: buildRequirement(route),
      upstream: route.upstream,
      ...pickPathOptions(settings, route.upstream),
      encodedSlash: route.encodedSlash,
      forwardAuthorization: route.forwardAuthorization,
      ...(route.host !== undefined && { host: route.host }),
      ...(route.methods !== undefined && { methods: new Set(route.methods) }),
      ...(route.clients !== undefined && { clients: new Set(route.clients) }),
      ...(route.issuers !== undefined && { issuers: new Set(route.issuers) }),
      ...(route.stripPrefix !== undefined && { stripPrefix: route.stripPrefix }),
      ...(route.cors !== undefined && { cors: buildCorsPolicy(route.cors) }),
      websocket: route.websocket,
      reportOnly: route.reportOnly,
    };
  });
}

function pickPathOptions({ upstreams }: Settings, name: string): Pick<AccessRule, 'paths'> {
  const paths = upstreams[name]?.paths;
  return paths === undefined ? {} : { paths };
}

const buildCorsPolicy = ({
  origins,
  methods,
  ...rest
}: NonNullable<Settings['routes'][number]['cors']>): CorsPolicy => ({
  origins: origins.includes('*') ? 'any' : new Set(origins),
  ...(methods !== undefined && { methods }),
  ...rest,
});

function buildRequirement({ path, public: isPublic, requires }: Settings['routes'][number]): Requirement {
  if (requires !== undefined)
    return requires === 'any-token' ? { kind: 'any-token' } : { kind: 'scope', scope: requires };
  if (isPublic === true) return { kind: 'public' };
  throw new Error(`routes: ${path} has neither public nor requires`);
}

export const buildGrantPolicy = ({ tokens, device }: Settings): GrantPolicy => ({
  retryWindow: tokens.refresh.retryWindow,
  reuse: tokens.refresh.reuse,
  supersede: tokens.refresh.supersede,
  device: { enabled: device.enabled, codeLifetime: device.codeLifetime, interval: device.interval },
});

export const listCertificateFiles = ({ listen, certificates }: Settings): CertificateFilePaths => ({
  ...(listen.tls !== undefined && { server: { certificate: listen.tls.certificate, key: listen.tls.key } }),
  issuers: certificates.issuers.map((issuer) => ({
    name: getIssuerName(issuer),
    file: issuer.file,
    directory: issuer.directory ?? certificates.directory ?? '',
    identityFrom: issuer.identityFrom ?? certificates.identityFrom,
  })),
  crls: certificates.crls,
});
