import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import * as oauth from 'oauth4webapi';
import { afterAll, beforeAll, beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import type { SettingsInput } from '../../../src/config/schema.ts';
import { type ClientGateway, startClientGateway } from '../../support/client-gateway.ts';
import { createForeignKey, formatKeySet } from '../../support/foreign-issuer.ts';
import { type Reply, startGateway, type TestGateway } from '../../support/test-gateway.ts';

const METADATA = '/.well-known/oauth-protected-resource';
const ORIGIN = 'https://localhost:8443';

const withRoutes = (settings: SettingsInput): SettingsInput => ({
  ...settings,
  trustedProxies: ['127.0.0.1'],
  hosts: { allowed: ['other.example.test'] },
  trustedIssuers: {
    corp: {
      issuer: 'https://corp.example.test',
      audience: 'files',
      jwksFile: 'jwks.json',
      scopes: { r: 'files:read' },
    },
  },
  integrations: [
    ...(settings.integrations ?? []),
    { clientId: 'admin-app', scope: 'admin:manage', access: [{ groups: ['operators'] }] },
  ],
  routes: [
    { path: '/health', public: true },
    { path: '/mixed', methods: ['GET'], public: true },
    { path: '/mixed', requires: 'any-token' },
    { path: '/files/**', methods: ['GET'], requires: 'files:read', issuers: ['own', 'corp'] },
    { path: '/files/**', requires: 'files:write;reports:write' },
    { path: '/tenant/**', host: 'tenant.example.test', requires: 'admin:manage' },
    { path: '/whoami', requires: 'any-token' },
    { path: '/encoded/**', requires: 'any-token', encodedSlash: true },
  ],
});

let keySet: string;
let gateway: TestGateway;
beforeAll(async () => {
  keySet = formatKeySet(await createForeignKey());
  gateway = await startGateway(withRoutes, (folder) => writeFileSync(join(folder, 'jwks.json'), keySet));
});
afterAll(() => gateway.close());
beforeEach(() => {
  gateway.upstream.requests.length = 0;
});

const get = (path: string, headers: Record<string, string> = {}): Promise<Reply> => gateway.request({ path, headers });
const find = (path: string, headers?: Record<string, string>): Promise<Reply> => get(`${METADATA}${path}`, headers);
const setMetadata = (resourceMetadata: NonNullable<SettingsInput['resourceMetadata']>): Promise<void> =>
  gateway.reload((settings) => ({ ...settings, resourceMetadata }));
const getMetadataUrl = ({ headers }: Reply): string | undefined =>
  /, resource_metadata="([^"]*)"$/.exec(headers['www-authenticate'] ?? '')?.[1];

test('a token can be requested for the resource of every host', async () => {
  for (const [path, host] of [
    ['/files/a', 'localhost:8443'],
    ['/files/a', 'other.example.test'],
    ['/tenant/a', 'tenant.example.test'],
    ['', 'tenant.example.test'],
  ] as const) {
    const { resource } = (await find(path, { host })).json;
    const body = { grant_type: 'client_credentials', client_id: 'admin-app', resource: String(resource) };
    const reply = await gateway.request({
      path: '/authsvc/oauth2/token',
      method: 'POST',
      headers: { 'content-type': 'application/x-www-form-urlencoded' },
      body: new URLSearchParams(body).toString(),
      as: gateway.users.alice,
    });
    expect(reply.status, `${String(resource)} ${reply.text}`).toBe(200);
  }
});

describe('the document', () => {
  test('RFC 9728 §3.2: describes the host, can be cached, and is served to GET and HEAD only', async () => {
    const reply = await find('');
    expect(reply.status).toBe(200);
    expect(reply.headers).toMatchObject({
      'content-type': 'application/json',
      'cache-control': 'public, max-age=300',
    });
    expect(reply.json).toEqual({
      resource: ORIGIN,
      authorization_servers: [ORIGIN, 'https://corp.example.test'],
      scopes_supported: ['files:read', 'files:write', 'reports:write'],
      bearer_methods_supported: ['header'],
      tls_client_certificate_bound_access_tokens: false,
    });
    expect(await gateway.request({ path: METADATA, method: 'HEAD' })).toMatchObject({
      status: 200,
      text: '',
    });
    for (const method of ['POST', 'PUT', 'DELETE', 'OPTIONS']) {
      const refused = await gateway.request({ path: METADATA, method });
      expect([refused.status, refused.headers.allow]).toEqual([405, 'GET, HEAD']);
    }
    expect(gateway.upstream.requests).toEqual([]);
  });

  test('exists exactly where a request without a token gets 401, and does not reveal which routes exist', async () => {
    const document = async (path: string) => {
      const { status, json } = await find(path);
      const { resource, ...rest } = json;
      return { status, rest, resource };
    };
    const protectedPath = await document('/files/a');
    expect(protectedPath).toMatchObject({ status: 200, resource: `${ORIGIN}/files/a` });
    for (const path of ['/nothing/here', '/files', '/whoami', '/mixed', '/tenant/a', '/Files/a', '/files/'])
      expect(await document(path), path).toEqual({ ...protectedPath, resource: `${ORIGIN}${path}` });
    expect((await document('/health')).status).toBe(404);
    for (const path of ['/files/a', '/nothing/here', '/whoami', '/tenant/a'])
      expect(getMetadataUrl(await get(path)), path).toBe(`${ORIGIN}${METADATA}${path}`);
  });

  test('with detail: route, lists scopes and issuers of the matching routes, and is 404 for other paths', async () => {
    await setMetadata({ detail: 'route' });
    onTestFinished(() => setMetadata({}));
    expect((await find('/files/a')).json).toMatchObject({
      resource: `${ORIGIN}/files/a`,
      authorization_servers: [ORIGIN, 'https://corp.example.test'],
      scopes_supported: ['files:read', 'files:write', 'reports:write'],
    });
    const whoami = await find('/whoami');
    expect(whoami.json).toMatchObject({ authorization_servers: [ORIGIN] });
    expect(whoami.json).not.toHaveProperty('scopes_supported');
    for (const path of ['/nothing', '/health', '/tenant/a']) expect((await find(path)).status, path).toBe(404);
    const tenant = await find('/tenant/a', { host: 'tenant.example.test' });
    expect(tenant.json).toMatchObject({
      resource: 'https://tenant.example.test:8443/tenant/a',
      scopes_supported: ['admin:manage'],
    });
  });

  test('names the host of the request only if it is listed', async () => {
    const resource = async (host: string) => (await find('/files/a', { host })).json['resource'];
    expect(await resource('other.example.test')).toBe('https://other.example.test:8443/files/a');
    expect(await resource('OTHER.example.test.:1234')).toBe('https://other.example.test:8443/files/a');
    expect(await resource('attacker.example')).toBe(`${ORIGIN}/files/a`);
    // Scopes of other hosts are not listed.
    expect((await find('', { host: 'other.example.test' })).json['scopes_supported']).not.toContain('admin:manage');
    expect((await find('', { host: 'tenant.example.test' })).json['scopes_supported']).toContain('admin:manage');
  });

  test.each([
    '/files/../a',
    '/files/%2e%2e/a',
    '//files',
    '/files%2Fa',
    '/files/a%00',
    '/files/%zz',
    '/files/..;x',
    METADATA,
    '/authsvc/Authorize/Token',
    '/.well-known/oauth-authorization-server',
  ])('an ambiguous path, or one of gatehouse itself, has no document: %s', async (path) => {
    const reply = await find(path);
    expect([400, 404]).toContain(reply.status);
    expect(reply.json).not.toHaveProperty('resource');
    expect(gateway.upstream.requests).toEqual([]);
  });

  test('the resource is the canonical path, whatever spelling and query were sent', async () => {
    expect((await find('/%66iles/a?x="<script>')).json['resource'] ?? `${ORIGIN}/files/a`).toBe(`${ORIGIN}/files/a`);
    expect((await find('/%66iles/a?x=1')).json['resource']).toBe(`${ORIGIN}/files/a`);
    expect((await get('/.well-known/oauth%2Dprotected-resource/files/a')).json['resource']).toBe(`${ORIGIN}/files/a`);
    expect((await find('/encoded/a%2fb')).json['resource']).toBe(`${ORIGIN}/encoded/a%2Fb`);
  });

  test('has a name and documentation if they are configured', async () => {
    await setMetadata({ name: 'Files API', documentation: 'https://docs.example.test' });
    onTestFinished(() => setMetadata({}));
    expect((await find('')).json).toMatchObject({
      resource_name: 'Files API',
      resource_documentation: 'https://docs.example.test',
    });
  });
});

describe('challenges', () => {
  test('RFC 9728 §5.1: every 401 names the document of its path', async () => {
    expect((await get('/files/a?b=c')).headers['www-authenticate']).toBe(
      `Bearer realm="gatehouse", resource_metadata="${ORIGIN}${METADATA}/files/a"`,
    );
    const invalid = await gateway.api('/whoami', 'a.b.c');
    expect(invalid.headers['www-authenticate']).toMatch(/^Bearer realm="gatehouse", error="invalid_token", /);
    expect(getMetadataUrl(invalid)).toBe(`${ORIGIN}${METADATA}/whoami`);
    expect(getMetadataUrl(await get('/'))).toBe(`${ORIGIN}${METADATA}`);
    expect(getMetadataUrl(await get('/files/a', { host: 'attacker.example' }))).toBe(`${ORIGIN}${METADATA}/files/a`);
    expect(getMetadataUrl(await get(`/files/${'a'.repeat(2_000)}`))).toBe(`${ORIGIN}${METADATA}`);
  });

  test('a token in the path is not repeated', async () => {
    const { access_token: access, refresh_token: refresh } = await gateway.grant();
    for (const secret of [access, refresh]) {
      const refused = await get(`/files/${secret}`);
      expect([refused.status, getMetadataUrl(refused)]).toEqual([401, `${ORIGIN}${METADATA}`]);
      const document = await find(`/files/${secret}`);
      expect([document.status, document.text.includes(secret)]).toEqual([404, false]);
    }
  });

  test('RFC 6750 §3: a 403 for scope names the scope that is enough, with spaces, and in our own form', async () => {
    const { access_token: token } = await gateway.grant();
    const refused = await gateway.api('/files/a', token, { method: 'POST' });
    expect(refused.status).toBe(403);
    expect(refused.headers['www-authenticate']).toContain(
      'error="insufficient_scope", error_description="The access token lacks the required scope: files:write reports:write.", scope="files:write reports:write", gatehouse_scope="files:write;reports:write", resource_metadata=',
    );
  });
});

test('switched off, the path is forwarded like any other, and challenges do not name it', async () => {
  await gateway.reload((settings) => ({
    ...settings,
    resourceMetadata: { enabled: false },
    routes: [...(settings.routes ?? []), { path: '/.well-known/**', public: true }],
  }));
  expect((await find('/files/a')).json).toMatchObject({ url: `${METADATA}/files/a` });
  expect((await get('/files/a')).headers['www-authenticate']).toBe('Bearer realm="gatehouse"');
});

test('a route below the well-known path is a configuration error', async () => {
  await expect(
    gateway.reload((settings) => ({
      ...settings,
      resourceMetadata: {},
      routes: [{ path: `${METADATA}/**`, public: true }],
    })),
  ).rejects.toThrow(/is served by gatehouse itself/);
});

describe('with oauth4webapi', () => {
  let at: ClientGateway;
  beforeAll(async () => {
    at = await startClientGateway();
  });
  afterAll(() => at.close());

  test('a client finds the authorization server from a 401', async () => {
    const fetch = at.fetch() as typeof globalThis.fetch;
    const resource = new URL(`${at.url}/files/a`);
    const refused = await fetch(resource);
    expect(refused.status).toBe(401);
    const options = { [oauth.customFetch]: fetch as never };
    const response = await oauth.resourceDiscoveryRequest(resource, options);
    expect(response.url || getMetadataUrl({ headers: Object.fromEntries(refused.headers) } as Reply)).toBe(
      getMetadataUrl({ headers: Object.fromEntries(refused.headers) } as Reply),
    );
    const metadata = await oauth.processResourceDiscoveryResponse(resource, response);
    const [issuer = ''] = metadata.authorization_servers ?? [];
    const discovered = await oauth.discoveryRequest(new URL(issuer), { ...options, algorithm: 'oauth2' });
    expect((await oauth.processDiscoveryResponse(new URL(issuer), discovered)).issuer).toBe(at.url);
    const whole = await oauth.resourceDiscoveryRequest(new URL(at.url), options);
    expect((await oauth.processResourceDiscoveryResponse(new URL(at.url), whole)).resource).toBe(at.url);
  });
});
