import { describe, expect, test } from 'vitest';
import { loadProblems, MINIMAL_CONFIG, USER } from '../support/configuration.ts';

/** A configuration with one problem, its path, and the message. */
const WRONG: readonly (readonly [text: string, path: string, words: RegExp])[] = [
  [
    'upstreams: { a: { url: "http://a", certificate: c.pem } }',
    'upstreams.a.certificate',
    /needs both certificate and key/,
  ],
  ['upstreams: { a: { url: "http://a", key: k.pem } }', 'upstreams.a.key', /needs both certificate and key/],
  ['upstreams: { a: { url: "http://a", health: { path: up } } }', 'upstreams.a.health.path', /must be a path/],
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
  ['listen: { behindTls: true, port: 1.5 }', 'listen.port', /must be an integer, and is 1\.5/],
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
  ['listen: { behindTls: true, tls: { certificate: a, key: b } }', 'listen.behindTls', /contradicts listen\.tls/],
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
  [`${MINIMAL_CONFIG}trustedProxies: [10.0.0.0/33]`, 'trustedProxies[0]', /not an address or CIDR: "10\.0\.0\.0\/33"/],
  [`${MINIMAL_CONFIG}service: { paths: [] }`, 'service.paths', /must list at least one/],
  [`${MINIMAL_CONFIG}service: { paths: [authsvc] }`, 'service.paths[0]', /must be a path such as \/authsvc/],
  [`${MINIMAL_CONFIG}store: { type: redsi }`, 'store.type', /must be embedded/],
  [
    `${MINIMAL_CONFIG}tokens: { accessLifetime: 1 hour }`,
    'tokens.accessLifetime',
    /integer followed by ms, s, m, h or d.*and is "1 hour"/,
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
    /must be from 0s to 60s/,
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
  [`${MINIMAL_CONFIG}limits: { body: 10MB }`, 'limits.body', /must be a size such as 16KiB or 10MiB, and is "10MB"/],
  [`${MINIMAL_CONFIG}limits: { rates: { token: 5 per second } }`, 'limits.rates.token', /must be a rate such as 20\/s/],
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
  [`${MINIMAL_CONFIG}certificates: { directory: staff }`, 'certificates.directory', /no such directory: "staff"/],
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
    /must be a string, and is 12/,
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
    /is missing; it must be a string/,
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
    /includes g, which the scope of the integration does not; add it there, or remove it here/,
  ],
  [
    `${MINIMAL_CONFIG}trustedIssuers: { corp: { issuer: "https://a.test", audience: x } }\nintegrations: [{ clientId: a, scope: f, grants: [device], exchange: [{ issuer: corp, subject: a }] }]`,
    'integrations[0].exchange',
    /has no effect: grants does not include exchange/,
  ],
  [
    `${MINIMAL_CONFIG}trustedIssuers: { client: { issuer: "https://a.test", audience: x } }\nintegrations: [{ clientId: a, scope: f, grants: [client], jwksUri: "https://a.test/jwks" }]`,
    'trustedIssuers.client.label',
    /is the label of clients that act for themselves/,
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
    /includes f:write, which the scope of the integration does not; add it there/,
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
    `${MINIMAL_CONFIG}upstreams: { default: { url: http://x } }\nroutes: [{ path: /a, public: true, requires: any-token }]`,
    'routes[0]',
    /^has both public and requires; remove/,
  ],
  [
    `${MINIMAL_CONFIG}upstreams: { default: { url: http://x } }\nroutes: [{ path: a, public: true }]`,
    'routes[0].path',
    /a path starts with \//,
  ],
  [`${MINIMAL_CONFIG}routes: [{ path: /a, public: true }]`, 'routes[0].upstream', /no such upstream: "default"/],
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
