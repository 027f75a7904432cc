import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { writeProblems } from '../../src/config/load.ts';
import { LEAST, load, problemsIn, SAMPLE, sound } from '../support/configuration.ts';

test('the sample of the contract loads, and means what it says', () => {
  const result = load(SAMPLE);
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

test('the least configuration has sound defaults', () => {
  expect(sound(LEAST)).toMatchObject({
    listen: { host: '127.0.0.1', port: 8443 },
    admin: { host: '127.0.0.1', port: 9443 },
    service: { paths: ['/authsvc'] },
    log: { level: 'info', format: 'json' },
  });
});

const USER = 'id: "{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}", name: alice';

/** A configuration that is wrong in one way, where that is, and what is said about it. */
const WRONG: readonly (readonly [text: string, path: string, words: RegExp])[] = [
  ['upstreams: { a: { url: "http://a", certificate: c.pem } }', 'upstreams.a.certificate', /give both/],
  ['upstreams: { a: { url: "http://a", key: k.pem } }', 'upstreams.a.key', /give both/],
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
    /a meaning of its own/,
  ],
  [
    '{ publicUrl: "https://a.test", upstreams: { a: { url: "http://a", assertion: { audience: "https://a.test" } } } }',
    'upstreams.a.assertion.audience',
    /audience of access tokens/,
  ],
  ['listen: { behindTls: true, prot: 1 }', 'listen.prot', /not a known setting; did you mean "port"\?/],
  ['listen: { behindTls: true, behind_tls: true }', 'listen.behind_tls', /did you mean "behindTls"/],
  [`${LEAST}port: 8443`, 'port', /did you mean "listen\.port" or "admin\.port"/],
  [`${LEAST}zebra: 1`, 'zebra', /not a known setting; take it out \(known here: admin, .*publicUrl/],
  [`${LEAST}"__proto__": { a: 1 }`, '__proto__', /not a known setting/],
  ['listen: { behindTls: true, port: "x" }', 'listen.port', /must be a number, and is "x"/],
  ['listen: { behindTls: true, port: 65536 }', 'listen.port', /must be at most 65535, and is 65536/],
  ['listen: { behindTls: true, port: -1 }', 'listen.port', /must be at least 0, and is -1/],
  ['listen: { behindTls: true, port: 1.5 }', 'listen.port', /must be a whole number, and is 1\.5/],
  ['listen: { behindTls: true, port: }', 'listen.port', /is empty; give it a value or take the line away/],
  ['listen: { behindTls: yes }', 'listen.behindTls', /must be true or false, and is "yes"/],
  [
    'listen: { behindTls: true, workers: many }',
    'listen.workers',
    /must be a number or auto, and is "many"|must be auto, and is "many"/,
  ],
  ['listen: { behindTls: true, host: "" }', 'listen.host', /must not be empty/],
  ['listen: []', 'listen', /must be a group of settings, and is a list/],
  ['listen: {}', 'listen.tls', /is missing; without it set listen\.behindTls: true/],
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
  ['listen: { behindTls: true, port: 9443 }', 'admin.port', /is 9443, which is listen\.port too/],
  [
    `${LEAST}publicUrl: https://api.example.test/path`,
    'publicUrl',
    /must be an origin such as .*without a path/,
  ],
  [
    `${LEAST}pages: { url: https://login.example.test/ }`,
    'pages.url',
    /must be an origin such as https:\/\/login\.example\.test, or shared/,
  ],
  [
    `${LEAST}publicUrl: https://api.example.test\npages: { url: https://api.example.test:8444 }`,
    'pages.url',
    /has the host name of publicUrl; .* every port of a host/,
  ],
  [
    `${LEAST}publicUrl: https://api.example.test\npages: { url: https://api.example.test. }`,
    'pages.url',
    /has the host name of publicUrl/,
  ],
  [
    `${LEAST}publicUrl: https://api.example.test\npages: { url: http://login.example.test }`,
    'pages.url',
    /is http, but publicUrl is https/,
  ],
  [
    `${LEAST}pages: { url: https://login.example.test }\nupstreams: { default: { url: "http://127.0.0.1:9" } }\nroutes: [{ path: /x, host: Login.example.test, public: true }]`,
    'routes[0].host',
    /is the host of pages\.url, which serves the pages alone/,
  ],
  [`${LEAST}trustedProxies: [10.0.0.0/33]`, 'trustedProxies[0]', /not an address or CIDR: "10\.0\.0\.0\/33"/],
  [`${LEAST}service: { paths: [] }`, 'service.paths', /must list at least one/],
  [`${LEAST}service: { paths: [authsvc] }`, 'service.paths[0]', /must be a path such as \/authsvc/],
  [`${LEAST}store: { type: redsi }`, 'store.type', /must be embedded/],
  [
    `${LEAST}tokens: { accessLifetime: 1 hour }`,
    'tokens.accessLifetime',
    /whole number followed by ms, s, m, h or d.*and is "1 hour"/,
  ],
  [
    `${LEAST}tokens: { accessLifetime: 3600 }`,
    'tokens.accessLifetime',
    /must be a duration such as 30s, and is 3600/,
  ],
  [`${LEAST}tokens: { accessLifetime: 0s }`, 'tokens.accessLifetime', /must be at least 1s/],
  [`${LEAST}tokens: { refresh: { retryWindow: 61s } }`, 'tokens.refresh.retryWindow', /must be at most 60s/],
  [
    `${LEAST}tokens: { refresh: { reuse: revok } }`,
    'tokens.refresh.reuse',
    /must be revoke or reject.*did you mean revoke\?/,
  ],
  [`${LEAST}device: { codeLifetime: 2d }`, 'device.codeLifetime', /must be from 10s to 1d/],
  [
    `${LEAST}device: { codeLifetime: 10s, interval: 11s }`,
    'device.interval',
    /longer than device\.codeLifetime/,
  ],
  [`${LEAST}limits: { body: 10MB }`, 'limits.body', /must be a size such as 16KiB or 10MiB, and is "10MB"/],
  [
    `${LEAST}limits: { rates: { token: 5 per second } }`,
    'limits.rates.token',
    /must be a rate such as 20\/s/,
  ],
  [`${LEAST}headers: { user: "X User" }`, 'headers.user', /must be a header name/],
  [`${LEAST}headers: { user: X-Who, clientId: x-who }`, 'headers.clientId', /"x-who" is used twice/],
  [
    `${LEAST}certificates: { issuers: [ca.pem] }`,
    'certificates.issuers[0].directory',
    /is missing; set it here or in certificates\.directory/,
  ],
  [
    `${LEAST}certificates: { issuers: [{ fil: ca.pem }] }`,
    'certificates.issuers[0].fil',
    /did you mean "file"/,
  ],
  [`${LEAST}certificates: { directory: staff }`, 'certificates.directory', /no such directory: "staff"/],
  [
    `${LEAST}certificates: { directory: s, issuers: [a/ca.pem, b/ca.pem] }\ndirectories: { s: { label: s, derive: true } }`,
    'certificates.issuers[1].name',
    /"ca" names two issuers/,
  ],
  [
    `${LEAST}directories: { a: { label: "a b" } }`,
    'directories.a.label',
    /must be letters, digits, dot, dash or underscore/,
  ],
  [
    `${LEAST}directories: { a: { label: x }, b: { label: x } }`,
    'directories.b.label',
    /"x" is the label of another directory/,
  ],
  [
    `${LEAST}directories: { a: { label: x, derive: true, users: [{ ${USER} }] } }`,
    'directories.a.users',
    /cannot stand beside derive: true/,
  ],
  [
    `${LEAST}directories: { a: { label: x, users: [{ id: 12, name: a }] } }`,
    'directories.a.users[0].id',
    /must be text, and is 12/,
  ],
  [
    `${LEAST}directories: { a: { label: x, users: [{ id: nobody, name: a }] } }`,
    'directories.a.users[0].id',
    /braced GUID or a hex string/,
  ],
  [
    `${LEAST}directories: { a: { label: x, users: [{ ${USER} }, { ${USER} }] } }`,
    'directories.a.users[1].name',
    /"alice" belongs to another user too/,
  ],
  [
    `${LEAST}directories: { "my dir": { label: x } }`,
    'directories["my dir"]',
    /has a name that is not allowed; use letters/,
  ],
  [`${LEAST}pages: { url: login.example.test }`, 'pages.url', /must be/],
  [`${LEAST}pages: { url: "https://" }`, 'pages.url', /must be/],
  [`${LEAST}pages: { url: Shared }`, 'pages.url', /must be/],
  [
    `${LEAST}integrations: [{ scope: "files:read" }]`,
    'integrations[0].clientId',
    /is missing; it must be text/,
  ],
  [
    `${LEAST}integrations: [{ clientId: a, scope: "Files;;" }]`,
    'integrations[0].scope',
    /not a scope: "Files;;".*write resource:permission/,
  ],
  [
    `${LEAST}integrations: [{ clientId: a b, scope: f }]`,
    'integrations[0].clientId',
    /printable ASCII without spaces/,
  ],
  [
    `${LEAST}integrations: [{ clientId: a, scope: f }, { clientId: a, scope: f }]`,
    'integrations[1].clientId',
    /"a" is taken already/,
  ],
  [
    `${LEAST}integrations: [{ clientId: a, scope: f, grants: [password] }]`,
    'integrations[0].grants[0]',
    /must be certificate or device, and is "password"/,
  ],
  [
    `${LEAST}integrations: [{ clientId: a, scope: f, access: [{}] }]`,
    'integrations[0].access[0]',
    /names nobody/,
  ],
  [
    `${LEAST}integrations: [{ clientId: a, scope: f, access: [{ identities: [bob] }] }]`,
    'integrations[0].access[0].identities[0]',
    /must be label:id/,
  ],
  [
    `${LEAST}integrations: [{ clientId: a, scope: f, access: [{ identities: ["x:00ff00ff"] }] }]`,
    'integrations[0].access[0].identities[0]',
    /no directory has the label/,
  ],
  [
    `${LEAST}integrations: [{ clientId: a, scope: "f:read", access: [{ groups: [g], scope: "f:write" }] }]`,
    'integrations[0].access[0].scope',
    /goes beyond the integration's scope by f:write/,
  ],
  [
    `${LEAST}integrations: [{ clientId: a, scope: f, issuers: [ca] }]`,
    'integrations[0].issuers[0]',
    /no such issuer: "ca"/,
  ],
  [`${LEAST}upstreams: { default: {} }`, 'upstreams.default', /give either url or urls/],
  [
    `${LEAST}upstreams: { default: { url: ftp://x } }`,
    'upstreams.default.url',
    /not an http, https or unix URL: "ftp:\/\/x"/,
  ],
  [
    `${LEAST}upstreams: { default: { url: http://x } }\nroutes: [{ path: /a }]`,
    'routes[0]',
    /says either public: true, or requires/,
  ],
  [
    `${LEAST}upstreams: { default: { url: http://x } }\nroutes: [{ path: a, public: true }]`,
    'routes[0].path',
    /a path starts with \//,
  ],
  [`${LEAST}routes: [{ path: /a, public: true }]`, 'routes[0].upstream', /no such upstream: "default"/],
  [
    `${LEAST}upstreams: { default: { url: http://x } }\nroutes: [{ path: /a, requires: f, clients: [nobody] }]`,
    'routes[0].clients[0]',
    /no such integration: "nobody"/,
  ],
  [
    `${LEAST}upstreams: { default: { url: http://x } }\nroutes: [{ path: /a, public: true, methods: [get] }]`,
    'routes[0].methods[0]',
    /a method in capitals/,
  ],
  [
    `${LEAST}upstreams: { default: { url: http://x } }\nroutes: [{ path: /AuthSvc/x, public: true }]`,
    'routes[0].path',
    /lies below \/authsvc/,
  ],
  [
    `${LEAST}upstreams: { default: { url: http://x } }\nroutes: [{ path: /a, public: true, stripPrefix: /b }]`,
    'routes[0].stripPrefix',
    /is not a prefix of \/a/,
  ],
  [
    `${LEAST}upstreams: { default: { url: http://x } }\nroutes: [{ path: /a/**, requires: any-token }, { path: /a/b, public: true }]`,
    'routes[1].path',
    /is never reached: routes\[0\]/,
  ],
  [
    `${LEAST}log:\n  level: \${NOT_SET}`,
    'log.level',
    /asks for the environment variable NOT_SET, which is not set/,
  ],
  [`${LEAST}log: { level: "\${NOT SET}" }`, 'log.level', /a "\$\{" that is not \$\{NAME\}/],
  ['- a list', '', /must be settings such as/],
];

describe('each of these is told with its place and what to do', () => {
  test.each(WRONG)('%s', (text, path, words) => {
    const problems = problemsIn(text);
    expect(problems.map((problem) => problem.path)).toContain(path);
    expect(problems.find((problem) => problem.path === path)?.message).toMatch(words);
    expect(problems.filter((problem) => problem.message.match(/undefined|\[object|Invalid/))).toEqual([]);
  });
});

describe('text that is no YAML is told with its line', () => {
  test.each([
    ['a key that stands twice', 'log: {}\nlisten: { behindTls: true }\nlog: {}\n', 3, /keys must be unique/],
    ['a broken mapping', 'listen:\n  port: 1\n  host: a: b\n', 3, /not valid YAML/],
    ['an unknown tag', 'listen:\n  port: !!js/function 1\n', 2, /not valid YAML: unresolved tag/],
    ['two documents', 'listen: {}\n---\nlisten: {}\n', 2, /not valid YAML/],
  ] as const)('%s', (_name, text, line, words) => {
    const [problem] = problemsIn(text);
    expect(problem?.line).toBe(line);
    expect(problem?.message).toMatch(words);
  });

  test('aliases that multiply are stopped', () => {
    const levels = Array.from(
      { length: 12 },
      (_, level) =>
        `a${level}: &a${level} [${Array.from({ length: 10 }, () => (level === 0 ? 'x' : `*a${level - 1}`)).join(',')}]`,
    );
    // Expanded they would be 10^12 values: a parser that did it would not return.
    expect(problemsIn(levels.join('\n'))[0]?.message).toMatch(/more than 100 aliases/);
  });

  test('nesting has an end, and so has an alias of itself', () => {
    expect(problemsIn(`listen: ${'['.repeat(20_000)}`)[0]?.message).toMatch(/not valid YAML/);
    expect(
      problemsIn('directories: &d { a: { label: x, users: [ { groups: *d } ] } }').length,
    ).toBeGreaterThan(0);
  });

  test('a file that is missing, a folder, or not text says so', () => {
    const place = load(LEAST).folder;
    expect(problemsIn('', { file: join(place, 'nowhere.yaml') })[0]?.message).toMatch(/there is no file/);
    expect(problemsIn('', { file: place })[0]?.message).toMatch(/is a folder/);
  });
});

test('shape problems and problems between sections show in one run, sorted, and the rest is named', () => {
  const result = load(`
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
  expect(result.unchecked).toEqual(['directories.staff', 'integrations[1]']);
  expect(writeProblems(result)).toContain(
    'not compared with the rest yet: directories.staff, integrations[1]',
  );
  expect(writeProblems(result)).toMatch(
    /^gatehouse: 6 problems in .*gatehouse\.yaml\n {2}directories\.staff\.label +must be letters.*\(line 4\)\n/,
  );
});

test('nothing is claimed about what a broken entry might have said', () => {
  const paths = problemsIn(`
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
  const paths = problemsIn(`${LEAST}routes:\n${routes.join('\n')}\n`).map(({ path }) => path);
  expect(paths).toEqual(Array.from({ length: 12 }, (_, index) => `routes[${index}].upstream`));
});

const HASH =
  '$argon2id$v=19$m=65536,t=3,p=1$c2FsdHNhbHRzYWx0c2FsdA$aGFzaGhhc2hoYXNoaGFzaGhhc2hoYXNoaGFzaGhhc2g';

describe('secrets', () => {
  const withUser = (more: string): string =>
    `${LEAST}directories: { a: { label: x, users: [{ ${USER}, ${more} }] } }`;

  test('a password hash may stand in a file of its own, which is watched too', () => {
    const result = load(withUser('passwordHashFile: hash.txt'), { files: { 'hash.txt': `${HASH}\n` } });
    expect(result.ok && result.settings.directories['a']?.users[0]?.passwordHash).toBe(HASH);
    expect(result.files).toEqual([join(result.folder, 'gatehouse.yaml'), join(result.folder, 'hash.txt')]);
  });

  test('a missing, empty or doubled secret is told by the name of its setting', () => {
    const path = 'directories.a.users[0].passwordHashFile';
    expect(problemsIn(withUser('passwordHashFile: no.txt'))).toMatchObject([
      { path, message: expect.stringMatching(/there is no file/) },
    ]);
    expect(problemsIn(withUser('passwordHashFile: e.txt'), { files: { 'e.txt': '\n' } })).toMatchObject([
      { path, message: expect.stringMatching(/is empty/) },
    ]);
    expect(
      problemsIn(withUser(`passwordHash: "${HASH}", passwordHashFile: h.txt`), { files: { 'h.txt': HASH } }),
    ).toMatchObject([{ path, message: 'stands beside passwordHash; keep one of them' }]);
  });

  test('no secret is told in a problem, wherever it came from', () => {
    const secret = 'hunter2-very-secret';
    const told = [
      problemsIn(withUser(`passwordHash: ${secret}`)),
      problemsIn(withUser('passwordHash: ${PW}'), { env: { PW: secret } }),
      problemsIn(withUser('passwordHashFile: h.txt'), { files: { 'h.txt': secret } }),
      problemsIn(withUser('email: a@b'), {
        env: { GATEHOUSE_DIRECTORIES__A__USERS__0__PASSWORD_HASH: secret },
      }),
      problemsIn(withUser('email: a@b'), {
        overrides: [`directories.a.users[0].passwordHash=${secret}`, `=${secret}`, secret],
      }),
      problemsIn(`${LEAST}integrations: [{ clientId: a, scope: "\${S}" }]`, {
        env: { S: secret.toUpperCase() + ';;' },
      }),
      problemsIn(`${LEAST}upstreams: { default: { url: "ftp://user:${secret}@host" } }`),
    ];
    for (const problems of told) expect(problems.length).toBeGreaterThan(0);
    expect(JSON.stringify(told).toLowerCase()).not.toContain(secret);
  });

  test('the schema’s complaint about a secret in a file names the file’s setting', () => {
    const [problem] = problemsIn(withUser('passwordHashFile: h.txt'), { files: { 'h.txt': 'plain' } });
    expect(problem).toMatchObject({
      path: 'directories.a.users[0].passwordHash',
      from: 'directories.a.users[0].passwordHashFile',
      message: expect.stringMatching(/must be made by `gatehouse hash-password`/),
    });
  });
});
