import { expect, test } from 'vitest';
import { formatProblems } from '../../src/config/load.ts';
import { loadProblems, loadText, MINIMAL_CONFIG } from '../support/configuration.ts';

const withIntegration = (more: string): string => `${MINIMAL_CONFIG}integrations:\n  - { clientId: a, ${more} }\n`;
const withRoute = (more: string): string =>
  `${MINIMAL_CONFIG}upstreams: { default: { url: "http://127.0.0.1:9" } }\nroutes:\n  - { path: /a, ${more} }\n`;

test.each([
  ['listen: { behindTls: yes }', 'listen.behindTls', 'write true'],
  ['listen: { behindTls: off }', 'listen.behindTls', 'write false'],
  [withRoute('public: on'), 'routes[0].public', 'write true'],
  [withRoute('public: no, requires: any-token'), 'routes[0].public', 'remove the line'],
  [`${MINIMAL_CONFIG}tokens: { accessLifetime: 3600 }`, 'tokens.accessLifetime', 'write 3600s for seconds'],
  ['listen:\n  - behindTls: true', 'listen', 'remove the dashes'],
  ['listen: behindTls:true', 'listen', 'there is no space after the colon of `behindTls`'],
  ['listen: on', 'listen', 'write its settings in the lines below'],
  ['listen: { behindTls: true, port: "8443" }', 'listen.port', 'without quotes'],
  [`${MINIMAL_CONFIG}routes:\n  path: /a\n  public: true`, 'routes', 'begin each entry with a dash'],
  [withRoute('public: true, methods: GET'), 'routes[0].methods', 'write a list: [GET]'],
  [withRoute('public: true, methods: "GET, HEAD"'), 'routes[0].methods', 'write a list: [GET, HEAD]'],
  [
    withIntegration('scope: f, grants: "device, certificate"'),
    'integrations[0].grants',
    'write a list: [device, certificate]',
  ],
  [withIntegration('scope: f, grants: devise'), 'integrations[0].grants', 'write a list: [device]'],
  [
    withIntegration('scope: f, grants: password'),
    'integrations[0].grants',
    'write a list with some of these: certificate, device,',
  ],
  [
    `${MINIMAL_CONFIG}directories: { a: { label: a, users: [{ name: 12 }] } }`,
    'directories.a.users[0].name',
    'put it in quotes: "12"',
  ],
  [
    `${MINIMAL_CONFIG}directories: { a: { label: a, users: [{ name: x, id: {5f0c} }] } }`,
    'directories.a.users[0].id',
    'begins with {, put it in quotes',
  ],
  [withIntegration('scope: [files:read, mail:send]'), 'integrations[0].scope', 'separate resources with ;'],
])('%s', (text, path, remedy) => {
  const problem = loadProblems(text).find((one) => one.path === path);
  expect(problem?.message).toContain(remedy);
  expect(problem?.excerpt).toBeDefined();
});

test.each([
  ['client_credentials', 'client'],
  ['authorization_code', 'code'],
  ['urn:ietf:params:oauth:grant-type:device_code', 'device'],
  ['urn:ietf:params:oauth:grant-type:token-exchange', 'exchange'],
  ['mtls', 'certificate'],
])('for the grant type %s, %s is suggested', (name, meant) => {
  const [problem] = loadProblems(withIntegration(`scope: f, grants: ["${name}"]`));
  expect(problem).toMatchObject({
    path: 'integrations[0].grants[0]',
    message: expect.stringContaining(`; did you mean ${meant}?`),
  });
});

test.each([
  ['localhost:3000', '; write http://localhost:3000, or https:// if it expects TLS'],
  ['10.0.0.1', '; write http://10.0.0.1, or https:// if it expects TLS'],
  ['/run/api.sock', '; write unix:/run/api.sock'],
  ['ftp://a', 'not an http, https or unix URL: "ftp://a"'],
])('for the upstream %s without a scheme, one is suggested', (url, remedy) => {
  const problems = loadProblems(`${MINIMAL_CONFIG}upstreams: { default: { url: "${url}" } }`);
  const problem = problems.find(({ path }) => path.startsWith('upstreams.default'));
  expect(problem?.message.endsWith(remedy), problem?.message).toBe(true);
});

test('the line is shown with a mark below the value', () => {
  const result = loadText('listen:\n  behindTls: true\ntokens:\n  accessLifetime: 3600\n');
  expect(result.ok).toBe(false);
  if (result.ok) return;
  expect(formatProblems(result).split('\n').slice(2)).toEqual([
    '      4 |   accessLifetime: 3600',
    '        |                   ^',
    '  There may be more problems, which can be found only when these are correct: tokens',
    '',
  ]);
});

test('a remedy does not repeat a value from a variable or a secret', () => {
  const [problem] = loadProblems(withIntegration('scope: "${S}"'), { env: { S: 'hunter2  hunter3' } });
  expect(JSON.stringify(problem)).not.toMatch(/hunter/);
});

test('lines are wrapped at the width of a terminal', () => {
  const result = loadText(
    `${MINIMAL_CONFIG}integrations:\n  - { clientId: a, scope: "files:read, reports:read", access: [{ identities: [bob] }] }\n`,
  );
  if (result.ok) throw new Error('expected problems');
  const wrapped = formatProblems({ ...result, name: 'gatehouse.yaml' }, 80).split('\n');
  expect(wrapped.filter((line) => line.length > 80)).toEqual([]);
  expect(wrapped.length).toBeGreaterThan(formatProblems(result).split('\n').length);
});

test.each(['files:read reports:read,write', 'files:read;reports:read,write'])('%j is a scope', (text) => {
  const loaded = loadText(
    withIntegration(`scope: "${text}", access: [{ groups: [x], scope: "files:read reports:read" }]`),
  );
  if (!loaded.ok) throw new Error(formatProblems(loaded));
  const [integration] = loaded.settings.integrations;
  expect(integration?.scope).toEqual(
    new Map([
      ['files', new Set(['read'])],
      ['reports', new Set(['read', 'write'])],
    ]),
  );
});
