import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { loadSettings } from '../../src/config/load.ts';
import type { SettingsInput } from '../../src/config/schema.ts';
import { runCommand } from '../support/command-in-process.ts';
import { testFolder } from '../support/configuration.ts';

const BASE: SettingsInput = {
  publicUrl: 'https://api.example.test',
  listen: { behindTls: true },
  directories: { staff: { label: 'local', derive: true } },
  upstreams: { default: { url: 'http://127.0.0.1:8080' } },
  trustedIssuers: { corp: { issuer: 'https://id.example.test', audience: 'files-api' } },
  routes: [{ path: '/files/**', requires: 'files:read', issuers: ['own', 'corp'] }],
};

const listProblems = (settings: unknown): string[] => {
  const loaded = loadSettings({ env: { GATEHOUSE_CONFIG_YAML: JSON.stringify(settings) }, cwd: '/' });
  return loaded.ok ? [] : loaded.problems.map(({ path, message }) => `${path}: ${message}`);
};
const withIssuer = (issuer: Readonly<Record<string, unknown>>, name = 'corp'): unknown => ({
  ...BASE,
  trustedIssuers: { [name]: { issuer: 'https://id.example.test', audience: 'files-api', ...issuer } },
  routes: [{ path: '/files/**', requires: 'files:read', issuers: ['own', name] }],
});

const INTROSPECTION = {
  url: 'https://id.example.test/introspect',
  clientId: 'gatehouse',
  clientSecret: 'secret',
};
const withTwo = (first: string | undefined, second: string | undefined): unknown => ({
  ...BASE,
  trustedIssuers: Object.fromEntries(
    [
      { name: 'corp', tokenPrefix: first },
      { name: 'other', tokenPrefix: second },
    ].map(({ name, tokenPrefix }) => [
      name,
      {
        issuer: `https://${name}.example.test`,
        audience: 'files-api',
        introspection: { ...INTROSPECTION, ...(tokenPrefix !== undefined && { tokenPrefix }) },
      },
    ]),
  ),
});

test('two issuers with introspection are valid if their prefixes exclude each other', () => {
  expect(listProblems(withTwo('a_', 'b_'))).toEqual([]);
});

test('the base of these tests is valid', () => {
  expect(listProblems(BASE)).toEqual([]);
});

test.each([
  ['10m', '1h', false],
  ['10m', '10m', false],
  ['10m', '9m', true],
  ['10m', '0s', true],
])('check with refreshInterval %s and maxStaleness %s: warns %s', async (refreshInterval, maxStaleness, warns) => {
  const file = join(testFolder(), 'gatehouse.yaml');
  writeFileSync(file, JSON.stringify(withIssuer({ refreshInterval, maxStaleness, scope: 'files:read' })));
  const { code, stderr } = await runCommand(['check', '-c', file]);
  expect(code).toBe(0);
  expect(stderr.includes('warning: trustedIssuers.corp.maxStaleness: is shorter than refreshInterval')).toBe(warns);
});

test.each([
  ['no audience', withIssuer({ audience: undefined }), /corp\.audience/],
  ['an http issuer', withIssuer({ issuer: 'http://id.example.test' }), /must be an https URL/],
  [
    'an issuer shared by all tenants',
    withIssuer({ issuer: 'https://login.microsoftonline.com/common/v2.0' }),
    /must name your tenant/,
  ],
  ['an HMAC algorithm', withIssuer({ algorithms: ['HS256'] }), /corp\.algorithms/],
  ['no algorithm', withIssuer({ algorithms: ['none'] }), /corp\.algorithms/],
  ['a large clock tolerance', withIssuer({ clockTolerance: '61s' }), /from 0s to 60s/],
  ['the label of a directory', withIssuer({ label: 'local' }), /already the label of directories\.staff/],
  ['gatehouse as an issuer', withIssuer({ issuer: 'https://api.example.test' }), /is publicUrl/],
  ['the name of own tokens', withIssuer({}, 'own'), /choose another/],
  ['a key without a certificate', withIssuer({ key: 'a.pem' }), /belong together/],
  ['two sources of keys', withIssuer({ jwksUri: 'https://id.example.test/keys', jwksFile: 'a' }), /cannot be combined/],
  ['a logout without an audience', withIssuer({ logout: {} }), /corp\.logout\.audience/],
  [
    'a logout that is forgotten too early',
    withIssuer({ logout: { audience: 'a', tokenLifetime: '59s' } }),
    /from 1m to 30d/,
  ],
  [
    'an http introspection endpoint',
    withIssuer({ introspection: { ...INTROSPECTION, url: 'http://id.example.test/introspect' } }),
    /must be an https URL/,
  ],
  [
    'an introspection without a secret',
    withIssuer({ introspection: { ...INTROSPECTION, clientSecret: undefined } }),
    /clientSecretFile is required/,
  ],
  [
    'results that are cached for long',
    withIssuer({ introspection: { ...INTROSPECTION, cacheLifetime: '6m' } }),
    /from 1s to 5m/,
  ],
  ['two issuers of any opaque token', withTwo(undefined, 'b_'), /is required where several issuers/],
  ['two issuers with one prefix', withTwo('a_', 'a_'), /prefixes that exclude each other/],
  ['overlapping prefixes', withTwo('a_', 'a_b_'), /begins with the tokenPrefix of trustedIssuers\.corp/],
  ['a malformed scope', withIssuer({ scopes: { reader: 'files:READ' } }), /not a scope/],
  [
    'two issuers with one URL',
    {
      ...BASE,
      trustedIssuers: { ...BASE.trustedIssuers, twin: { issuer: 'https://id.example.test', audience: 'b' } },
    },
    /is already the issuer of trustedIssuers\.corp/,
  ],
  [
    'a route with an unknown issuer',
    { ...BASE, routes: [{ path: '/files/**', requires: 'files:read', issuers: ['crop'] }] },
    /no such issuer: "crop"/,
  ],
  [
    'issuers on a public route',
    { ...BASE, routes: [{ path: '/files/**', public: true, issuers: ['corp'] }] },
    /has no effect on a public route/,
  ],
])('%s is reported', (_, settings, problem) => {
  const problems = listProblems(settings);
  expect(problems.join('\n')).toMatch(problem);
  expect(problems).toHaveLength(1);
});
