import { issuerName } from '../config/cross-check.ts';
import type { Settings } from '../config/schema.ts';
import { type AccessRule, type Demand, parsePattern } from '../domain/access-rule.ts';
import type { CorsPolicy } from '../domain/cors.ts';
import type { Integration } from '../domain/integration.ts';
import type { GrantPolicy } from '../grants/desk.ts';
import type { ApprovedIssuer } from '../tls/approved-issuer.ts';
import type { CertificateFileNames } from '../tls/certificate-files.ts';

/** The settings in the words of the rooms below. */
export function integrationsOf(
  settings: Settings,
  issuers: readonly ApprovedIssuer[],
): ReadonlyMap<string, Integration> {
  return new Map(
    settings.integrations.map((given) => [
      given.clientId,
      {
        clientId: given.clientId,
        name: given.name ?? given.clientId,
        scope: given.scope,
        grants: new Set(given.grants),
        access: given.access.map((entry) => ({
          groups: new Set(entry.groups),
          identities: new Set(entry.identities),
          ...(entry.directory !== undefined && { directory: entry.directory }),
          ...(entry.scope !== undefined && { scope: entry.scope }),
          ...(entry.grants !== undefined && { grants: new Set(entry.grants) }),
        })),
        accessLifetime: given.accessLifetime ?? settings.tokens.accessLifetime,
        grantLifetime: given.grantLifetime ?? settings.tokens.grantLifetime,
        bindToCertificate: given.bindToCertificate,
        tokenFormat: given.tokenFormat ?? settings.tokens.format,
        device: given.device,
        ...(given.issuers !== undefined && {
          issuers: new Set(
            issuers
              .filter(({ name }) => given.issuers?.includes(name))
              .map(({ keyFingerprint }) => keyFingerprint),
          ),
        }),
      },
    ]),
  );
}

export const introspectionOf = ({ introspection }: Settings) => ({
  ...(introspection.requires !== undefined && { requires: introspection.requires }),
  access: introspection.access.map(({ groups, identities, directory }) => ({
    groups: new Set(groups),
    identities: new Set(identities),
    ...(directory !== undefined && { directory }),
  })),
});

export function rulesOf(settings: Settings): AccessRule[] {
  return settings.routes.map((route, index) => {
    const pattern = parsePattern(route.path);
    if (!pattern.ok) throw new Error(pattern.problem);
    return {
      name: `routes[${index}] ${route.path}`,
      pattern: pattern.segments,
      demand: demandOf(route),
      upstream: route.upstream,
      ...readingOf(settings, route.upstream),
      encodedSlash: route.encodedSlash,
      forwardAuthorization: route.forwardAuthorization,
      ...(route.host !== undefined && { host: route.host }),
      ...(route.methods !== undefined && { methods: new Set(route.methods) }),
      ...(route.clients !== undefined && { clients: new Set(route.clients) }),
      ...(route.stripPrefix !== undefined && { stripPrefix: route.stripPrefix }),
      ...(route.cors !== undefined && { cors: corsOf(route.cors) }),
      websocket: route.websocket,
      reportOnly: route.reportOnly,
    };
  });
}

function readingOf({ upstreams }: Settings, name: string): Pick<AccessRule, 'paths'> {
  const paths = upstreams[name]?.paths;
  return paths === undefined ? {} : { paths };
}

const corsOf = ({
  origins,
  methods,
  ...rest
}: NonNullable<Settings['routes'][number]['cors']>): CorsPolicy => ({
  origins: origins.includes('*') ? 'any' : new Set(origins),
  ...(methods !== undefined && { methods }),
  ...rest,
});

function demandOf({ path, public: open, requires }: Settings['routes'][number]): Demand {
  if (requires !== undefined)
    return requires === 'any-token' ? { kind: 'any-token' } : { kind: 'scope', scope: requires };
  if (open === true) return { kind: 'public' };
  throw new Error(`routes: ${path} says neither public nor requires`);
}

export const policyOf = ({ tokens, device }: Settings): GrantPolicy => ({
  retryWindow: tokens.refresh.retryWindow,
  reuse: tokens.refresh.reuse,
  supersede: tokens.refresh.supersede,
  device: { enabled: device.enabled, codeLifetime: device.codeLifetime, interval: device.interval },
});

export const certificateFilesOf = ({ listen, certificates }: Settings): CertificateFileNames => ({
  ...(listen.tls !== undefined && { server: { certificate: listen.tls.certificate, key: listen.tls.key } }),
  issuers: certificates.issuers.map((issuer) => {
    const given = issuer as {
      file: string;
      name?: string;
      directory?: string;
      identityFrom?: typeof certificates.identityFrom;
    };
    return {
      name: issuerName(given),
      file: given.file,
      directory: given.directory ?? certificates.directory ?? '',
      identityFrom: given.identityFrom ?? certificates.identityFrom,
    };
  }),
  crls: certificates.crls,
});
