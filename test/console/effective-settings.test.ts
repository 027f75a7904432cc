import { expect, test } from 'vitest';
import { isSecret, listSettingPaths } from '../../src/config/known-settings.ts';
import { listEffectiveSettings } from '../../src/console/configuration.ts';
import { loadValid, SAMPLE } from '../support/configuration.ts';

const flatten = (text: string): Map<string, string | undefined> =>
  new Map(
    listEffectiveSettings(loadValid(text)).flatMap(({ settings }) =>
      settings.map(({ path, value }) => [path, value] as const),
    ),
  );

test('values have the form of the configuration file, and defaults are included', () => {
  const settings = flatten(SAMPLE);
  expect(Object.fromEntries(settings)).toMatchObject({
    publicUrl: 'https://localhost:8443',
    'tokens.accessLifetime': '1h',
    'tokens.grantLifetime': '90d',
    'limits.body': '10MiB',
    'listen.workers': '1',
    'routes[1].requires': 'files:read',
    'routes[1].methods': '[GET, HEAD]',
    'integrations[0].scope': 'files:read;reports:read,write',
    'admin.console.enabled': 'true',
    'limits.rates.token': expect.stringMatching(/^\d+\/[smh]$/),
  });
});

test('no secret is shown: neither those of the schema, nor in URLs, nor hashes', () => {
  const text = `
listen: { behindTls: true }
store: { type: redis, url: 'redis://user:hidden-1@cache:6379', password: hidden-2 }
tracing: { token: hidden-3, otlp: 'http://collector:4318/v1/traces' }
log: { access: { pseudonymKey: hidden-5-hidden-5-hidden-5-hidden-5, pseudonymise: [from] } }
audit: { webhook: { url: 'https://audit.example.test', secret: hidden-6-hidden-6-hidden-6 } }
integrations:
  - { clientId: app, scope: 'a:read', clientSecretHashes: ['sha256:${'A'.repeat(43)}'] }
directories:
  staff: { label: local, users: [{ id: a, name: alice, displayName: A, passwordHash: '$argon2id$v=19$m=65536,t=3,p=1$c2FsdHNhbHRzYWx0$aGFzaGhhc2hoYXNoaGFzaGhhc2hoYXNoaGFzaGhhc2g' }] }
`;
  const settings = flatten(text);
  const shown = [...settings].map(([path, value]) => `${path}=${value ?? ''}`).join('\n');
  expect(shown).not.toMatch(/hidden-|argon2|AAAAAAAA/);
  expect(settings.has('store.password')).toBe(true);
  expect(settings.get('store.password')).toBeUndefined();
});

test('every setting with a file of its own counts as a secret', () => {
  const secrets = listSettingPaths().filter((path) => isSecret(path));
  expect(secrets.length).toBeGreaterThan(3);
});

test('long lists are cut', () => {
  const routes = Array.from({ length: 300 }, (_, at) => `  - { path: /r${at}, public: true, upstream: a }`).join('\n');
  const sections = listEffectiveSettings(
    loadValid(`listen: { behindTls: true }\nupstreams: { a: { url: 'http://127.0.0.1:1' } }\nroutes:\n${routes}\n`),
  );
  expect(sections.find(({ name }) => name === 'routes')?.omitted).toBe(200);
});

test('keys in the URLs of receivers are hidden; public URLs are shown', () => {
  const settings = flatten(`
listen: { behindTls: true }
audit: { sink: webhook, webhook: { url: 'https://hooks.example.test/services/T0/hidden-1?key=hidden-2', secret: hidden-3-hidden-3-hidden-3 } }
tracing: { otlp: 'https://collector.example.test/v1/traces?api-key=hidden-4' }
certificates: { crls: [{ url: 'http://crl.example.test/ca.crl?sig=hidden-5' }] }
integrations:
  - { clientId: app, scope: 'a:read', grants: [code], redirectUris: ['https://app.example.test/callback?tenant=1'], access: [{ directory: staff }] }
directories:
  staff: { label: local, users: [{ id: a, name: alice }] }
`);
  expect([...settings.values()].join(' ')).not.toContain('hidden-');
  expect(Object.fromEntries(settings)).toMatchObject({
    'audit.webhook.url': 'https://hooks.example.test/[hidden]?[hidden]',
    'tracing.otlp': 'https://collector.example.test/v1/traces?[hidden]',
    'certificates.crls[0].url': 'http://crl.example.test/ca.crl?[hidden]',
    'integrations[0].redirectUris': '[https://app.example.test/callback?tenant=1]',
  });
});

test('only what the file sets differs from the defaults', () => {
  const text = `
listen: { behindTls: true }
upstreams: { api: { url: 'http://127.0.0.1:1', timeouts: { idle: 2m } } }
routes: [{ path: /x, public: true, upstream: api }]
tokens: { accessLifetime: 60m, grantLifetime: 30d }
limits: { body: 10240KiB }
`;
  const changed = listEffectiveSettings(loadValid(text)).flatMap(({ settings }) =>
    settings.filter(({ isChanged }) => isChanged).map(({ path }) => path),
  );
  expect(changed).toEqual([
    'listen.behindTls',
    'tokens.grantLifetime',
    'upstreams.api.url',
    'upstreams.api.timeouts.idle',
    'upstreams.api.targets',
    'routes[0].path',
    'routes[0].public',
    'routes[0].upstream',
  ]);
});
