import { getJsonSchema, type JsonSchema } from '../../src/config/known-settings.ts';
import type { Settings } from '../../src/config/schema.ts';
import {
  formatPath,
  getAt,
  isObject,
  type SettingPath,
  type Tree,
  type TreeObject,
} from '../../src/config/setting-path.ts';
import { testPasswordHash } from '../support/test-gateway.ts';

/** Matches any entry of a list or record in a path. */
const ANY = '*';
/** A path in the schema, such as `['routes', '*', 'path']`. */
export type SchemaPath = readonly string[];

function* listLeaves(schema: JsonSchema, path: SchemaPath = []): Generator<readonly [SchemaPath, JsonSchema]> {
  for (const variant of schema.anyOf ?? schema.oneOf ?? [schema]) {
    if (variant.items) yield* listLeaves(variant.items, [...path, ANY]);
    if (typeof variant.additionalProperties === 'object')
      yield* listLeaves(variant.additionalProperties, [...path, ANY]);
    for (const [name, inner] of Object.entries(variant.properties ?? {})) {
      const nested = [...listLeaves(inner, [...path, name])];
      if (nested.length === 0) yield [[...path, name], inner];
      yield* nested;
    }
  }
}

/** Every setting of the schema. */
export const LEAVES = [...listLeaves(getJsonSchema())];
export const formatSchemaPath = (path: SchemaPath): string => path.join('.');

/** A configuration that contains every group of settings. */
export const createBase = (upstreamPort: number): TreeObject => ({
  publicUrl: 'https://localhost:8443',
  listen: { port: 0, tls: { certificate: 'server.pem', key: 'server-key.pem' } },
  admin: { port: 0, tls: { certificate: 'server.pem', key: 'server-key.pem' } },
  store: { tls: {} },
  certificates: {
    issuers: [{ file: 'ca.pem', name: 'ca', ocsp: { url: 'http://127.0.0.1:1/' } }],
    crls: [{ url: 'http://127.0.0.1:1/ca.crl' }],
    directory: 'staff',
  },
  directories: {
    staff: {
      label: 'local',
      users: [
        {
          id: '{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}',
          name: 'alice',
          groups: ['operators'],
          passwordHash: testPasswordHash('first'),
        },
      ],
    },
    workloads: { label: 'wl' },
    corp: {
      label: 'corp',
      ldap: {
        url: 'ldaps://ldap.example.test',
        bindDn: 'cn=gatehouse',
        password: 'ldap-password',
        base: 'dc=example',
        groups: { base: 'ou=groups' },
      },
    },
  },
  signIn: {
    openid: {
      works: {
        title: { en: 'Works', de: 'Werk' },
        issuer: 'https://login.example.test',
        clientId: 'gatehouse',
        directory: 'staff',
        means: 'userName',
      },
    },
  },
  trustedIssuers: {
    partner: {
      issuer: 'https://partner.example.test',
      audience: 'files',
      jwksFile: 'jwks.json',
      certificate: 'server.pem',
      key: 'server-key.pem',
      logout: { audience: 'gatehouse' },
      introspection: {
        url: 'https://partner.example.test/introspect',
        clientId: 'gatehouse',
        clientSecret: 'a secret',
      },
    },
  },
  tokens: { claims: ['name', 'email', 'groups'] },
  dpop: { enabled: true },
  introspection: { access: [{ groups: ['operators'] }] },
  integrations: [
    {
      clientId: 'app',
      scope: 'files:read,write',
      access: [{ groups: ['operators'] }],
      exchange: [{ issuer: 'partner', subject: 'jobs:*' }],
    },
    { clientId: 'other', scope: 'files:read' },
  ],
  pages: {
    links: [{ text: { en: 'Help', de: 'Hilfe' }, url: 'https://help.example.test' }],
    permissions: { 'files:read': { en: 'read files', de: 'Dateien lesen' } },
  },
  upstreams: {
    default: { url: `http://127.0.0.1:${upstreamPort}`, health: { path: '/health' }, assertion: {} },
    secure: { url: 'https://127.0.0.1:1', certificate: 'server.pem', key: 'server-key.pem' },
  },
  routes: [
    { path: '/health', public: true, rate: [{ limit: '9/s', burst: 12, per: 'address' }] },
    {
      path: '/api/files/**',
      requires: 'files:read',
      cors: { origins: ['https://app.example.test'] },
      rate: [{ limit: '9/s', burst: 12, per: 'identity' }],
    },
  ],
  limits: { routes: [{ limit: '9/s', burst: 12, per: 'identity' }] },
  log: { access: { pseudonymKey: 'a-key-of-enough-characters' } },
  audit: {
    webhook: { url: 'https://audit.example.test', secret: 'a-secret-of-enough-characters' },
  },
  shutdown: { preStop: '0s', drain: '1s' },
});

const PUBLIC_JWK = { kty: 'OKP', crv: 'Ed25519', x: '11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo' };

/** Values of settings whose type does not determine the valid ones. */
export const EXAMPLES: Readonly<Record<string, Tree>> = {
  publicUrl: 'https://api.example.test',
  'hosts.allowed': ['api.example.test'],
  'admin.hostNames': ['metrics.example.test'],
  'admin.readOnlyTokenFile': 'data/viewer-token',
  'service.paths': ['/auth'],
  'pages.permissions': { 'files:read': { en: 'see your files' } },
  'keys.file': 'data/copy-of-keys.json',
  'store.url': 'redis://127.0.0.1:6379',
  'certificates.crls.*.url': 'http://127.0.0.1:2/ca.crl',
  'certificates.crls.*.issuer': 'ca',
  'certificates.issuers.*.ocsp.url': 'http://127.0.0.1:2/',
  'directories.*.users.*.dnsName': 'alice.example.test',
  'directories.*.users.*.uri': 'spiffe://example.org/alice',
  'directories.*.users.*.id': '00ff00ff00ff00ff',
  'directories.*.users.*.passwordHash': testPasswordHash('second'),
  'directories.*.ldap.url': 'ldaps://other.example.test',
  'directories.*.ldap.filter': '(objectClass=user)',
  'directories.*.ldap.groups.filter': '(objectClass=group)',
  'directories.*.ldap.disabled': '(disabled=true)',
  'trustedIssuers.*.issuer': 'https://other.example.test',
  'trustedIssuers.*.audience': ['files', 'reports'],
  'trustedIssuers.*.logout.audience': ['gatehouse', 'other'],
  'trustedIssuers.*.introspection.url': 'https://other.example.test/introspect',
  'trustedIssuers.*.introspection.tokenPrefix': 'op_',
  'trustedIssuers.*.requiredClaims': { tenant: '42' },
  'trustedIssuers.*.scopes': { reader: 'files:read' },
  'tokens.claims': ['name'],
  'headers.name': 'X-Name',
  'headers.email': 'X-Email',
  'headers.groups': 'X-Groups',
  'resourceMetadata.documentation': 'https://docs.example.test',
  'introspection.access.*.identities': ['local:00ff00ff00ff00ff'],
  'introspection.access.*.directory': 'staff',
  'signIn.openid.*.issuer': 'https://other.example.test',
  'signIn.openid.*.scope': 'openid email',
  'signIn.openid.*.directory': 'corp',
  'pages.url': 'https://pages.example.test',
  'pages.logo': 'logo.svg',
  'pages.accent': '#1d5bb8',
  'pages.timeZone': 'Europe/Berlin',
  'pages.links.*.url': 'https://imprint.example.test',
  'integrations.*.access.*.identities': ['local:00ff00ff00ff00ff'],
  'integrations.*.access.*.directory': 'staff',
  'integrations.*.issuers': ['ca'],
  'integrations.*.scope': 'files:read,write;reports:read',
  'integrations.*.access.*.scope': 'files:read',
  'integrations.*.audience': 'https://files.example.test',
  'integrations.*.clientSecretHashes': [`sha256:${'A'.repeat(43)}`],
  'integrations.*.jwks.keys': [PUBLIC_JWK],
  'integrations.*.exchange.*.subject': 'jobs:build-*',
  'integrations.*.exchange.*.claims': { ref: 'main', '/kubernetes.io/namespace': 'shop' },
  'integrations.*.exchange.*.scope': 'files:read',
  'certificates.directory': 'workloads',
  'certificates.issuers.*.directory': 'workloads',
  'upstreams.*.url': 'http://127.0.0.1:2',
  'upstreams.*.health.path': '/healthz',
  'upstreams.*.serverName': 'upstream.example.test',
  'routes.*.path': '/api/other/**',
  'routes.*.methods': ['GET'],
  'routes.*.clients': ['app'],
  'routes.*.issuers': ['own', 'partner'],
  'routes.*.audience': 'https://files.example.test',
  'upstreams.*.audience': ['https://files.example.test'],
  'routes.*.upstream': 'secure',
  'routes.*.stripPrefix': '/api',
  'routes.*.cors.origins': ['https://other.example.test'],
  'routes.*.cors.methods': ['GET'],
  'audit.webhook.url': 'https://other.example.test',
  'tracing.otlp': 'http://127.0.0.1:4318/v1/traces',
};

/** Settings that are only valid together with a change of another one. */
export const TOGETHER: Readonly<
  Record<string, (base: TreeObject) => readonly (readonly [SettingPath, Tree | undefined])[]>
> = {
  'admin.tls.operators': () => [
    [['admin', 'tls', 'operators'], ['CN=alice']],
    [['admin', 'tls', 'clientCa'], 'ca.pem'],
  ],
  'listen.behindTls': () => [
    [['listen', 'behindTls'], true],
    [['listen', 'tls'], undefined],
  ],
  'upstreams.*.health.grpcService': () => [
    [['upstreams', 'default', 'health', 'grpcService'], 'files.Files'],
    [['upstreams', 'default', 'health', 'path'], undefined],
    [['upstreams', 'default', 'protocol'], 'http2'],
  ],
  'store.type': () => [
    [['store', 'type'], 'redis'],
    [['store', 'url'], 'rediss://127.0.0.1:6379'],
  ],
  'directories.*.ldap.startTls': () => [
    [['directories', 'corp', 'ldap', 'startTls'], true],
    [['directories', 'corp', 'ldap', 'url'], 'ldap://ldap.example.test'],
  ],
  'trustedIssuers.*.jwksUri': () => [
    [['trustedIssuers', 'partner', 'jwksUri'], 'https://127.0.0.1:1/keys'],
    [['trustedIssuers', 'partner', 'jwksFile'], undefined],
  ],
  'integrations.*.exchange.*.issuer': () => [
    [['integrations', 0, 'exchange', 0, 'issuer'], 'other'],
    [['trustedIssuers', 'other'], { issuer: 'https://other.example.test', audience: 'files', jwksFile: 'jwks.json' }],
  ],
  'integrations.*.partialScope': () => [
    [['integrations', 1, 'partialScope'], true],
    [['integrations', 1, 'redirectUris'], ['https://app.example.test/callback']],
    [['integrations', 1, 'grants'], ['code']],
  ],
  'integrations.*.redirectUris': () => [
    [['integrations', 1, 'redirectUris'], ['https://app.example.test/callback']],
    [['integrations', 1, 'grants'], ['code']],
  ],
  ...Object.fromEntries(
    (
      [
        ['hosts', ['agents.example.test']],
        ['privateAddresses', true],
        ['ca', 'ca.pem'],
      ] as const
    ).map(([name, value]) => [
      `integrations.*.clientDocuments.${name}`,
      () =>
        [
          [['integrations', 1, 'clientDocuments'], { hosts: ['other.example.test'], [name]: value } as Tree],
          [['integrations', 1, 'grants'], ['code']],
        ] as const,
    ]),
  ),
  'integrations.*.jwksUri': () => [[['integrations', 0, 'jwksUri'], 'https://127.0.0.1:1/keys']],
  'integrations.*.jwksCa': () => [
    [['integrations', 0, 'jwksCa'], 'ca.pem'],
    [['integrations', 0, 'jwksUri'], 'https://127.0.0.1:1/keys'],
  ],
  'upstreams.*.urls': (base) => [
    [
      ['upstreams', 'default', 'urls'],
      [getAt(base, ['upstreams', 'default', 'url']) ?? '', 'http://127.0.0.1:2'],
    ],
    [['upstreams', 'default', 'url'], undefined],
  ],
  'routes.*.public': () => [
    [['routes', 1, 'public'], true],
    [['routes', 1, 'requires'], undefined],
    [['routes', 1, 'rate'], undefined],
  ],
  'certificates.issuers.*.trustDomain': () => [
    [['certificates', 'issuers', 0, 'trustDomain'], 'example.org'],
    [['certificates', 'issuers', 0, 'identityFrom'], 'uri'],
  ],
  'certificates.issuers.*.dnsDomain': () => [
    [['certificates', 'issuers', 0, 'dnsDomain'], 'example.org'],
    [['certificates', 'issuers', 0, 'identityFrom'], 'dnsName'],
  ],
  'certificates.forwardedFrom': () => [
    [['certificates', 'forwardedFrom'], ['10.0.0.0/8']],
    [['certificates', 'forwardedHeader'], 'client-cert'],
  ],
};

/** Settings that no request and no reload uses. */
export const USED_OTHERWISE: Readonly<Record<string, string>> = {
  'keys.algorithm': 'when a missing key file is created',
  'shutdown.preStop': 'at the shutdown, which has its own test',
  'shutdown.drain': 'at the shutdown, which has its own test',
};

/** Contents of the secret files. */
export const SECRET_FILES: Readonly<Record<string, string>> = {
  'store.urlFile': 'redis://127.0.0.1:6379',
  'directories.*.users.*.passwordHashFile': testPasswordHash('third'),
  'integrations.*.jwksFile': JSON.stringify({ keys: [PUBLIC_JWK] }),
};

/** Groups that a reload passes on as a whole and that are read later. */
export const HANDED_OVER = [
  'directories.*.ldap',
  'signIn.openid.*',
  'trustedIssuers.*.claims',
  'trustedIssuers.*.logout',
  'integrations.*.jwks',
  'integrations.*.exchange.*',
  'upstreams.*',
  'pages',
];

/** A different value for each setting, by type. */
export function listCandidates({ title, type, items, minimum, maximum, ...json }: JsonSchema, current: Tree): Tree[] {
  const number = typeof current === 'number' ? current : 0;
  if (json.enum) return [...json.enum];
  if (json.const !== undefined) return [json.const];
  if (title === 'duration') return ['7s', '20s', '3m'];
  if (title === 'size') return ['12KiB', '3MiB'];
  if (title === 'rate') return ['7/s'];
  if (title === 'scope') return ['files:read'];
  if (title === 'path') return [typeof current === 'string' ? `copy-of-${current}` : 'ca.pem'];
  if (title === 'list of peers') return [['10.0.0.0/8']];
  const variants = json.anyOf ?? json.oneOf;
  if (variants) return variants.flatMap((variant) => listCandidates(variant, current));
  if (type === 'boolean') return [true, false];
  if (type === 'integer') return [number + 1, minimum ?? 1, Math.min(maximum ?? 1_000, 1_000)];
  if (type === 'number') return [0.5, 1];
  if (type === 'array') return [items ? listCandidates(items, null).slice(0, 1) : []];
  return [typeof current === 'string' ? `${current}-2` : 'another-value-of-enough-characters'];
}

/** The paths of a setting in a configuration: one for each entry of lists and records. */
export function listPlaces(tree: Tree | undefined, [name, ...rest]: SchemaPath): SettingPath[] {
  if (name === undefined) return [[]];
  if (name !== ANY) return listPlaces(getAt(tree, [name]), rest).map((place) => [name, ...place]);
  const entries = Array.isArray(tree) ? [...tree.entries()] : isObject(tree) ? Object.entries(tree) : [];
  return entries.flatMap(([key, inner]) => listPlaces(inner, rest).map((place) => [key, ...place]));
}

export function withValue(tree: TreeObject, path: SettingPath, value: Tree | undefined): TreeObject {
  const copy = structuredClone(tree);
  let node: Tree = copy;
  for (const segment of path.slice(0, -1)) {
    const group = node as Record<string | number, Tree>;
    group[segment] ??= {};
    node = group[segment];
  }
  const last = path.at(-1) ?? '';
  const group = node as Record<string | number, Tree>;
  if (value === undefined) delete group[last];
  else group[last] = value;
  return copy;
}

/** Records the paths of all settings that are read, except by serialization, which only compares sections. */
export function recordReads(settings: Settings, onRead: (path: string) => void): Settings {
  const wrappers = new WeakMap<object, object>();
  const wrap = (value: unknown, path: SettingPath): unknown => {
    const isPlain =
      typeof value === 'object' &&
      value !== null &&
      (Array.isArray(value) || Object.getPrototypeOf(value) === Object.prototype);
    if (!isPlain) return value;
    const existing = wrappers.get(value);
    if (existing) return existing;
    const wrapper = new Proxy(value, {
      get(target, key, receiver) {
        if (key === 'toJSON') return () => target;
        const inner: unknown = Reflect.get(target, key, receiver);
        if (typeof key === 'symbol' || typeof inner === 'function') return inner;
        const innerPath = [...path, Array.isArray(target) ? Number(key) : key];
        onRead(formatPath(innerPath));
        return wrap(inner, innerPath);
      },
    });
    wrappers.set(value, wrapper);
    return wrapper;
  };
  return wrap(settings, []) as Settings;
}
