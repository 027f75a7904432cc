import { copyFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { getJsonSchema, type JsonSchema, settingAt } from '../../src/config/known-settings.ts';
import { loadSettings } from '../../src/config/load.ts';
import type { Settings } from '../../src/config/schema.ts';
import { formatPath, type SettingPath } from '../../src/config/setting-path.ts';
import { getAt, isObject, type Tree, type TreeObject } from '../../src/config/tree.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { type Gateway, openGateway } from '../../src/server/gateway.ts';
import { createForeignKey, formatKeySet } from '../support/foreign-issuer.ts';
import { jsonPostInit, sendRequest } from '../support/https-client.ts';
import { createCa, createCrl, issueServer } from '../support/pki.ts';
import { type TempFolder, tempFolder } from '../support/temp-folder.ts';
import { startUpstream, testPasswordHash, type Upstream } from '../support/test-gateway.ts';

/**
 * Every setting of the schema is changed in a running gateway. The change must apply at the reload, which shows in the new
 * runtime configuration reading the setting, or be reported as needing a restart.
 */

/** Matches any entry of a list or record in a path. */
const ANY = '*';
/** A path in the schema, such as `['routes', '*', 'path']`. */
type SchemaPath = readonly string[];

function* listLeaves(
  schema: JsonSchema,
  path: SchemaPath = [],
): Generator<readonly [SchemaPath, JsonSchema]> {
  for (const variant of schema.anyOf ?? schema.oneOf ?? [schema]) {
    if (variant.items) yield* listLeaves(variant.items, [...path, ANY]);
    if (typeof variant.additionalProperties === 'object')
      yield* listLeaves(variant.additionalProperties, [...path, ANY]);
    for (const [name, inner] of Object.entries(variant.properties ?? {})) {
      if (inner.deprecated === true) continue;
      const nested = [...listLeaves(inner, [...path, name])];
      if (nested.length === 0) yield [[...path, name], inner];
      yield* nested;
    }
  }
}

const LEAVES = [...listLeaves(getJsonSchema())];
const formatSchemaPath = (path: SchemaPath): string => path.join('.');

/** A configuration that contains every group of settings. */
const createBase = (upstreamPort: number): TreeObject => ({
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
      rate: { limit: '9/s', burst: 12, per: 'identity' },
    },
  ],
  limits: { routes: { limit: '9/s', burst: 12, per: 'identity' } },
  log: { access: { pseudonymKey: 'a-key-of-enough-characters' } },
  audit: {
    syslog: { url: 'udp://127.0.0.1:514', certificate: 'server.pem', key: 'server-key.pem' },
    webhook: { url: 'https://audit.example.test', secret: 'a-secret-of-enough-characters' },
  },
  shutdown: { preStop: '0s', drain: '1s' },
});

const PUBLIC_JWK = { kty: 'OKP', crv: 'Ed25519', x: '11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo' };

/** Values of settings whose type does not determine the valid ones. */
const EXAMPLES: Readonly<Record<string, Tree>> = {
  publicUrl: 'https://api.example.test',
  'hosts.allowed': ['api.example.test'],
  'admin.hostNames': ['metrics.example.test'],
  'admin.readOnlyTokenFile': 'data/viewer-token',
  'service.paths': ['/auth'],
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
  'dpop.algorithms': ['ES256'],
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
  'audit.syslog.url': 'tcp://127.0.0.1:601',
  'audit.webhook.url': 'https://other.example.test',
  'tracing.otlp': 'http://127.0.0.1:4318/v1/traces',
};

/** Settings that are only valid together with a change of another one. */
const TOGETHER: Readonly<
  Record<string, (base: TreeObject) => readonly (readonly [SettingPath, Tree | undefined])[]>
> = {
  'limits.routes.*.limit': () => [[['limits', 'routes'], [{ limit: '7/s' }]]],
  'limits.routes.*.burst': () => [[['limits', 'routes'], [{ limit: '9/s', burst: 13 }]]],
  'limits.routes.*.per': () => [[['limits', 'routes'], [{ limit: '9/s', burst: 12, per: 'route' }]]],
  'admin.tls.operators': () => [
    [['admin', 'tls', 'operators'], ['CN=alice']],
    [['admin', 'tls', 'clientCa'], 'ca.pem'],
  ],
  'listen.behindTls': () => [
    [['listen', 'behindTls'], true],
    [['listen', 'tls'], undefined],
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
    [
      ['trustedIssuers', 'other'],
      { issuer: 'https://other.example.test', audience: 'files', jwksFile: 'jwks.json' },
    ],
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
const USED_OTHERWISE: Readonly<Record<string, string>> = {
  'keys.algorithm': 'when a missing key file is created',
  'keys.publishBefore': 'by commands',
  'shutdown.preStop': 'at the shutdown, see below',
  'shutdown.drain': 'at the shutdown, see below',
};

/** Contents of the secret files. */
const SECRET_FILES: Readonly<Record<string, string>> = {
  'store.urlFile': 'redis://127.0.0.1:6379',
  'directories.*.users.*.passwordHashFile': testPasswordHash('third'),
  'integrations.*.jwksFile': JSON.stringify({ keys: [PUBLIC_JWK] }),
};

/** Groups that a reload passes on as a whole and that are read later. */
const HANDED_OVER = [
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
function listCandidates(
  { title, type, items, minimum, maximum, ...json }: JsonSchema,
  current: Tree,
): Tree[] {
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
function listPlaces(tree: Tree | undefined, [name, ...rest]: SchemaPath): SettingPath[] {
  if (name === undefined) return [[]];
  if (name !== ANY) return listPlaces(getAt(tree, [name]), rest).map((place) => [name, ...place]);
  const entries = Array.isArray(tree) ? [...tree.entries()] : isObject(tree) ? Object.entries(tree) : [];
  return entries.flatMap(([key, inner]) => listPlaces(inner, rest).map((place) => [key, ...place]));
}

function withValue(tree: TreeObject, path: SettingPath, value: Tree | undefined): TreeObject {
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
function recordReads(settings: Settings, onRead: (path: string) => void): Settings {
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

let folder: TempFolder;
let upstream: Upstream;
let base: TreeObject;
let gateway: Gateway;
/** Settings of the initial configuration that were read after the start. */
const staleReads = new Set<string>();
let started: Settings;

const load = (input: TreeObject): Settings | undefined => {
  const loaded = loadSettings({ env: { GATEHOUSE_CONFIG_YAML: JSON.stringify(input) }, cwd: folder.path });
  return loaded.ok ? loaded.settings : undefined;
};
const valueAt = (settings: Settings | undefined, path: SettingPath): string =>
  JSON.stringify(getAt(settings as unknown as Tree, path), (_key, value: unknown) =>
    value instanceof Map || value instanceof Set ? [...value] : value,
  );

interface Change {
  readonly place: SettingPath;
  readonly settings: Settings;
}

function createChange(path: SchemaPath, json: JsonSchema): Change {
  const name = formatSchemaPath(path);
  const together = TOGETHER[name]?.(base);
  if (together) {
    const settings = load(together.reduce((tree, [place, value]) => withValue(tree, place, value), base));
    const [[place] = [[]]] = together;
    if (settings && valueAt(settings, place) !== valueAt(started, place)) return { place, settings };
  }
  const [last = ''] = path.slice(-1);
  for (const place of listPlaces(base, path)) {
    // `passwordFile` sets `password`, and replaces it.
    const twin = [...place.slice(0, -1), last.replace(/File$/, '')];
    const isSecretFile = last.endsWith('File') && settingAt(twin) !== undefined;
    const target = isSecretFile ? twin : place;
    if (isSecretFile) folder.write('secret.txt', SECRET_FILES[name] ?? 'a-secret-in-a-file');
    const current = getAt(base, place) ?? json.default ?? null;
    const example = EXAMPLES[name];
    const candidates = isSecretFile
      ? ['secret.txt']
      : example === undefined
        ? listCandidates(json, current as Tree)
        : [example];
    for (const candidate of candidates) {
      const withoutTwin = isSecretFile ? withValue(base, target, undefined) : base;
      const settings = load(withValue(withoutTwin, place, candidate));
      if (settings && valueAt(settings, target) !== valueAt(started, target))
        return { place: target, settings };
    }
  }
  throw new Error(`no other valid value for ${name}: add one to EXAMPLES or TOGETHER in this test`);
}

/** Requests that use settings which are read when they are needed. */
async function useGateway(): Promise<void> {
  const options = { port: gateway.port, rejectUnauthorized: false };
  await sendRequest({ ...options, path: '/health' });
  await sendRequest({
    ...options,
    ...jsonPostInit('/Authorize/Device', { client_id: 'app', scope: 'files:read' }),
  });
}

beforeAll(async () => {
  folder = tempFolder('every-setting');
  upstream = await startUpstream();
  const ca = await createCa();
  const server = await issueServer(ca);
  folder.write('ca.pem', ca.pem);
  folder.write('crl.pem', (await createCrl(ca)).pem);
  folder.write('server.pem', server.pem);
  folder.write('server-key.pem', server.keyPem);
  folder.write('jwks.json', formatKeySet(await createForeignKey()));
  folder.write('logo.svg', '<svg xmlns="http://www.w3.org/2000/svg"/>');
  base = createBase(upstream.port);
  const settings = load(base);
  if (!settings) throw new Error('the configuration of this test is invalid');
  started = settings;
  const log = createLogger({ level: 'info', format: 'json', write: () => {} });
  gateway = await openGateway({ settings: recordReads(settings, (path) => staleReads.add(path)), log });
  for (const file of ['ca.pem', 'server.pem', 'server-key.pem', 'jwks.json'])
    copyFileSync(folder.file(file), folder.file(`copy-of-${file}`));
  copyFileSync(folder.file('data/keys.json'), folder.file('data/copy-of-keys.json'));
  // The first reload compares its settings with those of the start.
  await gateway.reload(settings);
  staleReads.clear();
});
afterAll(async () => {
  await gateway.close();
  await upstream.close();
  folder.remove();
});

test('the schema has settings, and the tables of this test name existing ones', () => {
  expect(LEAVES.length).toBeGreaterThan(200);
  const names = new Set(LEAVES.map(([path]) => formatSchemaPath(path)));
  expect(
    [EXAMPLES, TOGETHER, USED_OTHERWISE, SECRET_FILES]
      .flatMap((table) => Object.keys(table))
      .filter((name) => !names.has(name)),
  ).toEqual([]);
});

const reloadWith = async ({ settings }: Change) => {
  const reads = new Map<string, number>();
  const pendingRestart = await gateway.reload(
    recordReads(settings, (path) => reads.set(path, (reads.get(path) ?? 0) + 1)),
  );
  return { reads, pendingRestart };
};

describe('a change applies at a reload, or is reported as needing a restart', () => {
  test.each(LEAVES.map(([path, json]) => [formatSchemaPath(path), path, json] as const))(
    '%s',
    async (name, path, json) => {
      const change = createChange(path, json);
      const { reads, pendingRestart } = await reloadWith(change);
      if (settingAt(change.place)?.appliesAfter !== undefined) {
        expect(pendingRestart).toContain(formatPath(change.place));
        return;
      }
      expect(pendingRestart).toEqual([]);
      if (Object.hasOwn(USED_OTHERWISE, name)) return;
      const depth = HANDED_OVER.find((group) => name.startsWith(`${group}.`))?.split('.').length;
      const read = formatPath(change.place.slice(0, depth));
      if (!reads.has(read)) await useGateway();
      expect([...reads.keys()], 'settings that are read at the reload or when used').toContain(read);
    },
  );

  test.each(['limits.connections', 'log.level', 'store.prefix', 'tracing.service'])(
    'this test would detect that %s is read only at start',
    async (name) => {
      const [path = [], json = {}] = LEAVES.find(([leaf]) => formatSchemaPath(leaf) === name) ?? [];
      const { reads } = await reloadWith(createChange(path, json));
      await useGateway();
      // Read once, by the comparison that reports it.
      expect(reads.get(name)).toBe(1);
    },
  );

  test('the initial settings are no longer used, except for those that need a restart', () => {
    // An upstream that has not changed keeps its connections and health checks.
    const leaves = LEAVES.filter(([[section]]) => section !== 'upstreams');
    const stale = leaves
      .flatMap(([path]) => listPlaces(base, path))
      .filter((place) => staleReads.has(formatPath(place)) && settingAt(place)?.appliesAfter === undefined);
    expect(stale.map(formatPath)).toEqual([]);
  });

  test('shutdown settings apply at the shutdown after the reload', async () => {
    const settings = load({ ...base, shutdown: { preStop: '1ms', drain: '2s' } });
    const reads = new Set<string>();
    await gateway.reload(recordReads(settings as Settings, (path) => reads.add(path)));
    await gateway.drain();
    expect([...reads]).toEqual(expect.arrayContaining(['shutdown.preStop', 'shutdown.drain']));
  });
});
