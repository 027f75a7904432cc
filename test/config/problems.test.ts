import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { formatProblems } from '../../src/config/load.ts';
import { loadProblems, loadText, loadValid, MINIMAL_CONFIG, SAMPLE } from '../support/configuration.ts';

test('the sample configuration loads with the documented meaning', () => {
  const result = loadText(SAMPLE);
  expect(result).toMatchObject({
    ok: true,
    settings: {
      publicUrl: 'https://localhost:8443',
      listen: { port: 8443, workers: 1, tls: { minVersion: 'TLSv1.2', askCertificate: 'always' } },
      tokens: { accessLifetime: 3_600, grantLifetime: 90 * 86_400, refresh: { retryWindow: 10 } },
      limits: { body: 10 * 1_048_576, headers: 16_384, headerTimeout: 10, connections: 10_000 },
      shutdown: { preStop: 5, drain: 30 },
      upstreams: { default: { targets: ['http://127.0.0.1:9000'], timeouts: { connect: 2 } } },
    },
  });
  if (!result.ok) return;
  expect(result.settings.listen.tls?.certificate).toBe(join(result.folder, 'pki/server.pem'));
  expect(result.settings.directories['staff']?.users[0]?.name).toBe('alice');
  expect(result.settings.integrations[0]?.access).toHaveLength(3);
  expect(result.settings.routes.map(({ path }) => path)).toEqual(['/health', '/files/**', '/reports/**']);
  expect(result.files).toEqual([join(result.folder, 'gatehouse.yaml')]);
});

test('the minimal configuration has safe defaults', () => {
  expect(loadValid(MINIMAL_CONFIG)).toMatchObject({
    listen: { host: '127.0.0.1', port: 8443 },
    admin: { host: '127.0.0.1', port: 9443 },
    service: { paths: ['/authsvc'] },
    log: { level: 'info', format: 'auto' },
  });
});

const USER = 'id: "{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}", name: alice';

/** A configuration with one problem, its path, and the message. */
const WRONG: readonly (readonly [text: string, path: string, words: RegExp])[] = [
  [
    'upstreams: { a: { url: "http://a", certificate: c.pem } }',
    'upstreams.a.certificate',
    /needs both certificate and key/,
  ],
  ['upstreams: { a: { url: "http://a", key: k.pem } }', 'upstreams.a.key', /needs both certificate and key/],
  [
    'upstreams: { a: { url: "http://a", health: { path: up } } }',
    'upstreams.a.health.path',
    /must be a path/,
  ],
  [
    'upstreams: { a: { url: "http://a", assertion: { header: X-Forwarded-User } } }',
    'upstreams.a.assertion.header',
    /is used twice/,
  ],
  [
    'upstreams: { a: { url: "http://a", assertion: { header: Authorization } } }',
    'upstreams.a.assertion.header',
    /is a reserved header/,
  ],
  [
    '{ publicUrl: "https://a.test", upstreams: { a: { url: "http://a", assertion: { audience: "https://a.test" } } } }',
    'upstreams.a.assertion.audience',
    /audience of access tokens/,
  ],
  ['listen: { behindTls: true, prot: 1 }', 'listen.prot', /not a known setting; did you mean "port"\?/],
  ['listen: { behindTls: true, behind_tls: true }', 'listen.behind_tls', /did you mean "behindTls"/],
  [`${MINIMAL_CONFIG}port: 8443`, 'port', /did you mean "listen\.port" or "admin\.port"/],
  [`${MINIMAL_CONFIG}zebra: 1`, 'zebra', /not a known setting; remove it \(known here: admin, .*publicUrl/],
  [`${MINIMAL_CONFIG}"__proto__": { a: 1 }`, '__proto__', /not a known setting/],
  ['listen: { behindTls: true, port: "x" }', 'listen.port', /must be a number, and is "x"/],
  ['listen: { behindTls: true, port: 65536 }', 'listen.port', /must be at most 65535, and is 65536/],
  ['listen: { behindTls: true, port: -1 }', 'listen.port', /must be at least 0, and is -1/],
  ['listen: { behindTls: true, port: 1.5 }', 'listen.port', /must be a whole number, and is 1\.5/],
  ['listen: { behindTls: true, port: }', 'listen.port', /is empty; set a value or remove the line/],
  ['listen: { behindTls: yes }', 'listen.behindTls', /must be true or false, and is "yes"/],
  [
    'listen: { behindTls: true, workers: many }',
    'listen.workers',
    /must be a number or auto, and is "many"|must be auto, and is "many"/,
  ],
  ['listen: { behindTls: true, host: "" }', 'listen.host', /must not be empty/],
  ['listen: []', 'listen', /must be a group of settings, and is a list/],
  ['listen: {}', 'listen.tls', /is missing; without it, set listen\.behindTls: true/],
  [
    'listen: { behindTls: true, tls: { certificate: a, key: b } }',
    'listen.behindTls',
    /contradicts listen\.tls/,
  ],
  ['listen: { tls: { certificate: a.pem } }', 'listen.tls.key', /is missing; it must be a path/],
  [
    'listen: { tls: { certificate: a, key: b, minVersion: TLSv1.1 } }',
    'listen.tls.minVersion',
    /must be TLSv1\.2 or TLSv1\.3, and is "TLSv1\.1"/,
  ],
  ['listen: { behindTls: true, port: 9443 }', 'admin.port', /is 9443, which is also listen\.port/],
  [
    `${MINIMAL_CONFIG}publicUrl: https://api.example.test/path`,
    'publicUrl',
    /must be an origin such as .*without a path/,
  ],
  [
    `${MINIMAL_CONFIG}pages: { url: https://login.example.test/ }`,
    'pages.url',
    /must be an origin such as https:\/\/login\.example\.test, or shared/,
  ],
  [
    `${MINIMAL_CONFIG}publicUrl: https://api.example.test\npages: { url: https://api.example.test:8444 }`,
    'pages.url',
    /has the host name of publicUrl; .* every port of a host/,
  ],
  [
    `${MINIMAL_CONFIG}publicUrl: https://api.example.test\npages: { url: https://api.example.test. }`,
    'pages.url',
    /has the host name of publicUrl/,
  ],
  [
    `${MINIMAL_CONFIG}publicUrl: https://api.example.test\npages: { url: http://login.example.test }`,
    'pages.url',
    /is http, but publicUrl is https/,
  ],
  [
    `${MINIMAL_CONFIG}pages: { url: https://login.example.test }\nupstreams: { default: { url: "http://127.0.0.1:9" } }\nroutes: [{ path: /x, host: Login.example.test, public: true }]`,
    'routes[0].host',
    /is the host of pages\.url, which serves only the pages/,
  ],
  [
    `${MINIMAL_CONFIG}trustedProxies: [10.0.0.0/33]`,
    'trustedProxies[0]',
    /not an address or CIDR: "10\.0\.0\.0\/33"/,
  ],
  [`${MINIMAL_CONFIG}service: { paths: [] }`, 'service.paths', /must list at least one/],
  [`${MINIMAL_CONFIG}service: { paths: [authsvc] }`, 'service.paths[0]', /must be a path such as \/authsvc/],
  [`${MINIMAL_CONFIG}store: { type: redsi }`, 'store.type', /must be embedded/],
  [
    `${MINIMAL_CONFIG}tokens: { accessLifetime: 1 hour }`,
    'tokens.accessLifetime',
    /whole number followed by ms, s, m, h or d.*and is "1 hour"/,
  ],
  [
    `${MINIMAL_CONFIG}tokens: { accessLifetime: 3600 }`,
    'tokens.accessLifetime',
    /must be a duration such as 30s, and is 3600/,
  ],
  [`${MINIMAL_CONFIG}tokens: { accessLifetime: 0s }`, 'tokens.accessLifetime', /must be at least 1s/],
  [
    `${MINIMAL_CONFIG}tokens: { refresh: { retryWindow: 61s } }`,
    'tokens.refresh.retryWindow',
    /must be at most 60s/,
  ],
  [
    `${MINIMAL_CONFIG}tokens: { refresh: { reuse: revok } }`,
    'tokens.refresh.reuse',
    /must be revoke or reject.*did you mean revoke\?/,
  ],
  [`${MINIMAL_CONFIG}device: { codeLifetime: 2d }`, 'device.codeLifetime', /must be from 10s to 1d/],
  [
    `${MINIMAL_CONFIG}device: { codeLifetime: 10s, interval: 11s }`,
    'device.interval',
    /longer than device\.codeLifetime/,
  ],
  [
    `${MINIMAL_CONFIG}limits: { body: 10MB }`,
    'limits.body',
    /must be a size such as 16KiB or 10MiB, and is "10MB"/,
  ],
  [
    `${MINIMAL_CONFIG}limits: { rates: { token: 5 per second } }`,
    'limits.rates.token',
    /must be a rate such as 20\/s/,
  ],
  [`${MINIMAL_CONFIG}headers: { user: "X User" }`, 'headers.user', /must be a header name/],
  [`${MINIMAL_CONFIG}headers: { user: X-Who, clientId: x-who }`, 'headers.clientId', /"x-who" is used twice/],
  [
    `${MINIMAL_CONFIG}certificates: { issuers: [ca.pem] }`,
    'certificates.issuers[0].directory',
    /is missing; set it here or in certificates\.directory/,
  ],
  [
    `${MINIMAL_CONFIG}certificates: { issuers: [{ fil: ca.pem }] }`,
    'certificates.issuers[0].fil',
    /did you mean "file"/,
  ],
  [
    `${MINIMAL_CONFIG}certificates: { directory: staff }`,
    'certificates.directory',
    /no such directory: "staff"/,
  ],
  [
    `${MINIMAL_CONFIG}certificates: { directory: s, issuers: [a/ca.pem, b/ca.pem] }\ndirectories: { s: { label: s, derive: true } }`,
    'certificates.issuers[1].name',
    /"ca" is already the name of another issuer/,
  ],
  [
    `${MINIMAL_CONFIG}directories: { a: { label: "a b" } }`,
    'directories.a.label',
    /must be letters, digits, dot, dash or underscore/,
  ],
  [
    `${MINIMAL_CONFIG}directories: { a: { label: x }, b: { label: x } }`,
    'directories.b.label',
    /"x" is already the label of another directory/,
  ],
  [
    `${MINIMAL_CONFIG}directories: { a: { label: x, derive: true, users: [{ ${USER} }] } }`,
    'directories.a.users',
    /cannot be combined with derive: true/,
  ],
  [
    `${MINIMAL_CONFIG}directories: { a: { label: x, users: [{ id: 12, name: a }] } }`,
    'directories.a.users[0].id',
    /must be text, and is 12/,
  ],
  [
    `${MINIMAL_CONFIG}directories: { a: { label: x, users: [{ id: "", name: a }] } }`,
    'directories.a.users[0].id',
    /must not be empty/,
  ],
  [
    `${MINIMAL_CONFIG}directories: { a: { label: x, users: [{ ${USER} }, { ${USER} }] } }`,
    'directories.a.users[1].name',
    /"alice" also belongs to another user/,
  ],
  [
    `${MINIMAL_CONFIG}directories: { "my dir": { label: x } }`,
    'directories["my dir"]',
    /has an invalid name; use letters/,
  ],
  [`${MINIMAL_CONFIG}pages: { url: login.example.test }`, 'pages.url', /must be/],
  [`${MINIMAL_CONFIG}pages: { url: "https://" }`, 'pages.url', /must be/],
  [`${MINIMAL_CONFIG}pages: { url: Shared }`, 'pages.url', /must be/],
  [
    `${MINIMAL_CONFIG}integrations: [{ scope: "files:read" }]`,
    'integrations[0].clientId',
    /is missing; it must be text/,
  ],
  [
    `${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: "Files;;" }]`,
    'integrations[0].scope',
    /not a scope: "Files;;".*write resource:permission/,
  ],
  [
    `${MINIMAL_CONFIG}integrations: [{ clientId: a b, scope: f }]`,
    'integrations[0].clientId',
    /printable ASCII without spaces/,
  ],
  [
    `${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: f }, { clientId: a, scope: f }]`,
    'integrations[1].clientId',
    /"a" is already used by another integration/,
  ],
  [
    `${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: f, grants: [password] }]`,
    'integrations[0].grants[0]',
    /must be certificate, device, exchange, client or code, and is "password"/,
  ],
  [
    `${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: f, grants: [client] }]`,
    'integrations[0].grants',
    /client needs clientSecretHashes, jwks, jwksFile or jwksUri/,
  ],
  [
    `${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: f, grants: [code] }]`,
    'integrations[0].grants',
    /code needs redirectUris/,
  ],
  [
    `${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: f, redirectUris: ['https://app.example.test/'] }]`,
    'integrations[0].redirectUris',
    /has no effect: grants does not include code/,
  ],
  [
    `${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: f, grants: [code], redirectUris: ['http://app.example.test/'] }]`,
    'integrations[0].redirectUris[0]',
    /must be https; http is for http:\/\/127\.0\.0\.1/,
  ],
  [
    `${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: f, grants: [code], clientDocuments: { hosts: ['https://claude.ai'] } }]`,
    'integrations[0].clientDocuments.hosts[0]',
    /must be a host such as/,
  ],
  [
    `${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: f, clientDocuments: { hosts: [claude.ai] } }]`,
    'integrations[0].clientDocuments.hosts',
    /has no effect: grants does not include code/,
  ],
  [
    `${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: f, clientSecretHashes: [hunter2] }]`,
    'integrations[0].clientSecretHashes[0]',
    /must be a hash that gatehouse hash-secret prints/,
  ],
  [
    `${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: f, jwks: { keys: [{ kty: OKP }] }, jwksUri: "https://a.test/jwks" }]`,
    'integrations[0].jwksUri',
    /cannot be combined with jwks or jwksFile/,
  ],
  [
    `${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: f, jwksUri: "http://a.test/jwks" }]`,
    'integrations[0].jwksUri',
    /must be an https URL/,
  ],
  [
    `${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: f, exchange: [{ issuer: corp, subject: "*" }] }]`,
    'integrations[0].exchange[0].issuer',
    /no such issuer: "corp"/,
  ],
  [
    `${MINIMAL_CONFIG}trustedIssuers: { corp: { issuer: "https://a.test", audience: x } }\nintegrations: [{ clientId: a, scope: f, exchange: [{ issuer: corp, subject: "a*b*c" }] }]`,
    'integrations[0].exchange[0].subject',
    /at most one \* is allowed between : and \//,
  ],
  [
    `${MINIMAL_CONFIG}trustedIssuers: { corp: { issuer: "https://a.test", audience: x } }\nintegrations: [{ clientId: a, scope: f, exchange: [{ issuer: corp, subject: a, scope: g }] }]`,
    'integrations[0].exchange[0].scope',
    /exceeds the scope of the integration by g/,
  ],
  [
    `${MINIMAL_CONFIG}trustedIssuers: { corp: { issuer: "https://a.test", audience: x } }\nintegrations: [{ clientId: a, scope: f, grants: [device], exchange: [{ issuer: corp, subject: a }] }]`,
    'integrations[0].exchange',
    /has no effect: grants does not include exchange/,
  ],
  [
    `${MINIMAL_CONFIG}trustedIssuers: { client: { issuer: "https://a.test", audience: x } }\nintegrations: [{ clientId: a, scope: f, grants: [client], jwksUri: "https://a.test/jwks" }]`,
    'tokens.clientLabel',
    /"client" is already the label of client/,
  ],
  [
    `${MINIMAL_CONFIG}upstreams: { default: { url: "http://127.0.0.1:1" } }\nroutes: [{ path: /a, public: true, audience: x }]`,
    'routes[0].audience',
    /has no effect on a public route/,
  ],
  [
    `${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: f, access: [{}] }]`,
    'integrations[0].access[0]',
    /selects no one/,
  ],
  [
    `${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: f, access: [{ identities: [bob] }] }]`,
    'integrations[0].access[0].identities[0]',
    /must be label:id/,
  ],
  [
    `${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: f, access: [{ identities: ["x:00ff00ff"] }] }]`,
    'integrations[0].access[0].identities[0]',
    /no directory has the label/,
  ],
  [
    `${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: "f:read", access: [{ groups: [g], scope: "f:write" }] }]`,
    'integrations[0].access[0].scope',
    /exceeds the scope of the integration by f:write/,
  ],
  [
    `${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: f, issuers: [ca] }]`,
    'integrations[0].issuers[0]',
    /no such issuer: "ca"/,
  ],
  [`${MINIMAL_CONFIG}upstreams: { default: {} }`, 'upstreams.default', /needs either url or urls/],
  [
    `${MINIMAL_CONFIG}upstreams: { default: { url: ftp://x } }`,
    'upstreams.default.url',
    /not an http, https or unix URL: "ftp:\/\/x"/,
  ],
  [
    `${MINIMAL_CONFIG}upstreams: { default: { url: http://x } }\nroutes: [{ path: /a }]`,
    'routes[0]',
    /needs either public: true, or requires/,
  ],
  [
    `${MINIMAL_CONFIG}upstreams: { default: { url: http://x } }\nroutes: [{ path: a, public: true }]`,
    'routes[0].path',
    /a path starts with \//,
  ],
  [
    `${MINIMAL_CONFIG}routes: [{ path: /a, public: true }]`,
    'routes[0].upstream',
    /no such upstream: "default"/,
  ],
  [
    `${MINIMAL_CONFIG}upstreams: { default: { url: http://x } }\nroutes: [{ path: /a, requires: f, clients: [nobody] }]`,
    'routes[0].clients[0]',
    /no such integration: "nobody"/,
  ],
  [
    `${MINIMAL_CONFIG}upstreams: { default: { url: http://x } }\nroutes: [{ path: /a, public: true, methods: [get] }]`,
    'routes[0].methods[0]',
    /a method in capitals/,
  ],
  [
    `${MINIMAL_CONFIG}upstreams: { default: { url: http://x } }\nroutes: [{ path: /AuthSvc/x, public: true }]`,
    'routes[0].path',
    /is below \/authsvc/,
  ],
  [
    `${MINIMAL_CONFIG}upstreams: { default: { url: http://x } }\nroutes: [{ path: /a, public: true, stripPrefix: /b }]`,
    'routes[0].stripPrefix',
    /is not a prefix of \/a/,
  ],
  [
    `${MINIMAL_CONFIG}upstreams: { default: { url: http://x } }\nroutes: [{ path: /a/**, requires: any-token }, { path: /a/b, public: true }]`,
    'routes[1].path',
    /is never reached: routes\[0\] \(\/a\/\*\*\) matches all its requests; move this route before it/,
  ],
  [
    `${MINIMAL_CONFIG}upstreams: { default: { url: http://x } }\nroutes: [{ path: /b, public: true }, { path: /a, methods: [GET, PUT], requires: any-token }, { path: /a, methods: [PUT, GET], public: true }]`,
    'routes[2].path',
    /is never reached: path, methods and host are the same as routes\[1\]; remove one of the two, or merge them/,
  ],
  [
    `${MINIMAL_CONFIG}log:\n  level: \${NOT_SET}`,
    'log.level',
    /uses the environment variable NOT_SET, which is not set/,
  ],
  [`${MINIMAL_CONFIG}log: { level: "\${NOT SET}" }`, 'log.level', /contains "\$\{" without \$\{NAME\}/],
  ['- a list', '', /must be settings such as/],
];

describe('each problem is reported with its location and the remedy', () => {
  test.each(WRONG)('%s', (text, path, words) => {
    const problems = loadProblems(text);
    expect(problems.map((problem) => problem.path)).toContain(path);
    expect(problems.find((problem) => problem.path === path)?.message).toMatch(words);
    expect(problems.filter((problem) => problem.message.match(/undefined|\[object|Invalid/))).toEqual([]);
  });
});

describe('text that is not YAML is reported with its line', () => {
  test.each([
    ['a broken mapping', 'listen:\n  port: 1\n  host: a: b\n', 3, /put the value in quotes/],
    ['an unknown tag', 'listen:\n  port: !!js/function 1\n', 2, /in YAML, ! begins a tag/],
    ['an unknown escape', 'listen:\n  host: "\\q"\n', 2, /not valid YAML: invalid escape/],
  ] as const)('%s', (_name, text, line, words) => {
    const [problem] = loadProblems(text);
    expect(problem?.line).toBe(line);
    expect(problem?.message).toMatch(words);
  });

  test('exponential alias expansion is rejected', () => {
    const levels = Array.from(
      { length: 12 },
      (_, level) =>
        `a${level}: &a${level} [${Array.from({ length: 10 }, () => (level === 0 ? 'x' : `*a${level - 1}`)).join(',')}]`,
    );
    // Expanded, these are 10^12 values: a parser that expands them never returns.
    expect(loadProblems(levels.join('\n'))[0]?.message).toMatch(/more than 100 aliases/);
  });

  test('nesting depth is limited, and recursive aliases are rejected', () => {
    expect(loadProblems(`listen: ${'['.repeat(20_000)}`)[0]?.message).toMatch(/not valid YAML/);
    expect(
      loadProblems('directories: &d { a: { label: x, users: [ { groups: *d } ] } }').length,
    ).toBeGreaterThan(0);
  });

  test('a missing file, a folder and a binary file are reported', () => {
    const place = loadText(MINIMAL_CONFIG).folder;
    expect(loadProblems('', { file: join(place, 'nowhere.yaml') })[0]?.message).toMatch(/does not exist/);
    expect(loadProblems('', { file: place })[0]?.message).toMatch(/is a folder/);
  });
});

test('schema problems and cross-section problems are reported in one run, sorted, and further checks that did not run are named', () => {
  const result = loadText(`
listen: { behindTls: true, prot: 1 }
tokens: { accessLifetime: soon }
directories: { staff: { label: "a b" } }
integrations:
  - { clientId: a, scope: "f:read", access: [{ directory: nobody }] }
  - { clientId: b, scope: ";;" }
routes:
  - { path: /a, requires: f, upstream: nowhere }
`);
  expect(result.ok).toBe(false);
  if (result.ok) return;
  expect(result.problems.map(({ path }) => path)).toEqual([
    'directories.staff.label',
    'integrations[0].access[0].directory',
    'integrations[1].scope',
    'listen.prot',
    'routes[0].upstream',
    'tokens.accessLifetime',
  ]);
  expect(result.unchecked).toEqual(['tokens', 'directories.staff', 'integrations[1]']);
  expect(formatProblems(result)).toContain(
    'not cross-checked yet: tokens, directories.staff, integrations[1]',
  );
  expect(formatProblems(result)).toMatch(
    /^gatehouse: 6 problems in .*gatehouse\.yaml\n {2}directories\.staff\.label +must be letters.*\(line 4\)\n/,
  );
});

test('no further problems are reported for a setting that is already invalid', () => {
  const paths = loadProblems(`
listen: { behindTls: true }
directories: { staff: { label: 7 } }
integrations:
  - { clientId: 5, scope: f }
  - { clientId: b, scope: f, access: [{ directory: staff, identities: ["any:00ff00ff"] }] }
upstreams: { default: { url: 3 } }
routes: [{ path: /a, requires: f, clients: [c] }]
`).map(({ path }) => path);
  expect(paths).toEqual(['directories.staff.label', 'integrations[0].clientId', 'upstreams.default.url']);
});

test('indexes are sorted as numbers', () => {
  const routes = Array.from(
    { length: 12 },
    (_, index) => `  - { path: "/r${index}", public: true, upstream: no }`,
  );
  const paths = loadProblems(`${MINIMAL_CONFIG}routes:\n${routes.join('\n')}\n`).map(({ path }) => path);
  expect(paths).toEqual(Array.from({ length: 12 }, (_, index) => `routes[${index}].upstream`));
});

const HASH =
  '$argon2id$v=19$m=65536,t=3,p=1$c2FsdHNhbHRzYWx0c2FsdA$aGFzaGhhc2hoYXNoaGFzaGhhc2hoYXNoaGFzaGhhc2g';

describe('secrets', () => {
  const withUser = (more: string): string =>
    `${MINIMAL_CONFIG}directories: { a: { label: x, users: [{ ${USER}, ${more} }] } }`;

  test('a password hash may be in a separate file, which is watched too', () => {
    const result = loadText(withUser('passwordHashFile: hash.txt'), { files: { 'hash.txt': `${HASH}\n` } });
    expect(result.ok && result.settings.directories['a']?.users[0]?.passwordHash).toBe(HASH);
    expect(result.files).toEqual([join(result.folder, 'gatehouse.yaml'), join(result.folder, 'hash.txt')]);
  });

  test('a missing, empty or duplicate secret is reported by the name of its setting', () => {
    const path = 'directories.a.users[0].passwordHashFile';
    expect(loadProblems(withUser('passwordHashFile: no.txt'))).toMatchObject([
      { path, message: expect.stringMatching(/does not exist/) },
    ]);
    expect(loadProblems(withUser('passwordHashFile: e.txt'), { files: { 'e.txt': '\n' } })).toMatchObject([
      { path, message: expect.stringMatching(/is empty/) },
    ]);
    expect(
      loadProblems(withUser(`passwordHash: "${HASH}", passwordHashFile: h.txt`), {
        files: { 'h.txt': HASH },
      }),
    ).toMatchObject([{ path, message: 'is set in addition to passwordHash; remove one of them' }]);
  });

  test('no problem message contains a secret, from any source', () => {
    const secret = 'hunter2-very-secret';
    const reported = [
      loadProblems(withUser(`passwordHash: ${secret}`)),
      loadProblems(withUser('passwordHash: ${PW}'), { env: { PW: secret } }),
      loadProblems(withUser('passwordHashFile: h.txt'), { files: { 'h.txt': secret } }),
      loadProblems(withUser('email: a@b'), {
        env: { GATEHOUSE_DIRECTORIES__A__USERS__0__PASSWORD_HASH: secret },
      }),
      loadProblems(withUser('email: a@b'), {
        overrides: [`directories.a.users[0].passwordHash=${secret}`, `=${secret}`, secret],
      }),
      loadProblems(`${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: "\${S}" }]`, {
        env: { S: secret.toUpperCase() + ';;' },
      }),
      loadProblems(`${MINIMAL_CONFIG}upstreams: { default: { url: "ftp://user:${secret}@host" } }`),
    ];
    for (const problems of reported) expect(problems.length).toBeGreaterThan(0);
    expect(JSON.stringify(reported).toLowerCase()).not.toContain(secret);
  });

  test('a schema error of a secret from a file names the setting of the file', () => {
    const [problem] = loadProblems(withUser('passwordHashFile: h.txt'), { files: { 'h.txt': 'plain' } });
    expect(problem).toMatchObject({
      path: 'directories.a.users[0].passwordHash',
      from: 'directories.a.users[0].passwordHashFile',
      message: expect.stringMatching(/must be the output of `gatehouse hash-password`/),
    });
  });
});
