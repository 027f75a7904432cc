import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ALICE } from '../../support/test-gateway.ts';
import { CHECK, type Headers, useForwardAuthGateway } from './forward-auth-gateway.ts';

/** One public and one protected rule: the status shows which host a request was authorized for. */
const HOST_ROUTES = [
  { path: '/lobby', host: 'open.example.test', public: true },
  { path: '/lobby', host: 'shut.example.test', requires: 'reports:write' },
] as const;

const setUp = useForwardAuthGateway();
const { bearer, check, gateways } = setUp;
const { nginx } = gateways;

describe.each(Object.entries(gateways))('a check request of %s', (_, send) => {
  test('a request that a rule allows is 200 with every identity header', async () => {
    const reply = await send('GET', '/files/a?b=c', bearer());
    expect(reply.status).toBe(200);
    expect(reply.text).toBe('');
    expect(reply.headers).toMatchObject({
      'x-forwarded-user': ALICE,
      'x-forwarded-client-id': 'report-runner',
      'x-forwarded-scope': 'files:read',
      'cache-control': 'no-store',
    });
    expect(reply.headers['x-request-id']).toMatch(/^[\w-]{8,}$/);
  });

  test('a public rule is 200 without a token, and every identity header is present and empty', async () => {
    const reply = await send('GET', '/health', {});
    expect(reply.status).toBe(200);
    expect(reply.headers).toMatchObject({
      'x-forwarded-user': '',
      'x-forwarded-client-id': '',
      'x-forwarded-scope': '',
    });
  });

  test('without a token: 401 with a challenge; with an invalid one: invalid_token', async () => {
    const none = await send('GET', '/files/a', {});
    expect(none.status).toBe(401);
    expect(none.headers['www-authenticate']).toBe(
      'Bearer realm="gatehouse", resource_metadata="https://localhost:8443/.well-known/oauth-protected-resource/files/a"',
    );
    expect(none.headers['cache-control']).toBe('no-store');
    const bad = await send('GET', '/files/a', bearer('nonsense'));
    expect(bad.status).toBe(401);
    expect(bad.headers['www-authenticate']).toContain('error="invalid_token"');
    expect(bad.headers['x-forwarded-user']).toBeUndefined();
  });

  test('too little scope, and a rule for another client, are 403 with a challenge', async () => {
    const scope = await send('GET', '/reports/a', bearer());
    expect(scope.status).toBe(403);
    expect(scope.headers['www-authenticate']).toContain(
      'error="insufficient_scope", error_description="The access token lacks the required scope: reports:write.", scope="reports:write"',
    );
    const client = await send('GET', '/other/a', bearer());
    expect(client.status).toBe(403);
    expect(client.json['error']).toBe('insufficient_scope');
  });

  test('the method is checked: a rule for GET does not apply to POST', async () => {
    expect((await send('POST', '/files/a', bearer())).status).toBe(403);
    expect((await send('HEAD', '/files/a', bearer())).status).toBe(200);
  });

  test('a request that matches no rule is 403, not 404', async () => {
    const reply = await send('GET', '/nowhere', bearer());
    expect(reply.status).toBe(403);
    expect(reply.json['error']).toBe('not_found');
  });

  test.each([
    '/files/../reports/a',
    '/files/%2e%2e/reports/a',
    '/files//a',
    '//files/a',
    '/files/%2fa',
    '/files/a%00',
    '/files/%zz',
    '/files/a;/../b',
    '/files/a\\b',
    '/health/..;/reports',
    '/files/a?access_token=x',
  ])('an ambiguous path is 403, not 400: %s', async (uri) => {
    const reply = await send('GET', uri, bearer());
    expect(reply.status).toBe(403);
    expect(reply.json['error']).toBe('invalid_request');
    // The check request itself is valid, so the connection stays open.
    expect(reply.headers.connection).not.toBe('close');
  });

  describe('a preflight', () => {
    const preflight = (path: string, origin = 'https://app.test', method = 'GET', more: Headers = {}) =>
      send('OPTIONS', path, { origin, 'access-control-request-method': method, ...more });

    test('from an allowed origin passes without identity, with the CORS response headers', async () => {
      const reply = await preflight('/shared/a');
      expect(reply.status).toBe(200);
      expect(reply.headers).toMatchObject({
        'x-forwarded-user': '',
        'x-forwarded-client-id': '',
        'x-forwarded-scope': '',
        'access-control-allow-origin': 'https://app.test',
      });
    });

    test('from another origin is 403', async () => {
      const reply = await preflight('/shared/a', 'https://evil.test');
      expect([reply.status, reply.headers['access-control-allow-origin']]).toEqual([403, undefined]);
    });

    test('is decided by the rule of the requested method: without a rule, or without cors, a token is required', async () => {
      expect((await preflight('/shared/a', undefined, 'DELETE')).status).toBe(401);
      expect((await preflight('/files/a')).status).toBe(401);
    });

    test('cannot bypass a rule: not for OPTIONS itself, not with a token, not with an unusual path', async () => {
      expect((await send('OPTIONS', '/shared/a', { origin: 'https://app.test' })).status).toBe(401);
      expect((await preflight('/shared/a', undefined, 'GET', bearer('nonsense'))).status).toBe(401);
      expect((await preflight('/shared/../files/a')).status).toBe(403);
      expect((await preflight('/shared/%66')).status).toBe(403);
    });
  });

  test('the paths of the token service are never allowed', async () => {
    expect((await send('GET', '/AuthSvc/Authorize/Verify', bearer())).status).toBe(403);
  });
});

test('an unnecessary percent-encoding is refused, since the gateway would forward a path that no rule has matched', async () => {
  expect((await nginx('GET', '/%66iles/a', bearer())).status).toBe(403);
  expect((await nginx('GET', '/files/%c3%a9', bearer())).status).toBe(200);
  expect((await nginx('GET', '/files/%C3%A9?x=%66', bearer())).status).toBe(200);
});

describe('the original request', () => {
  const ORIGINAL_REQUEST = { 'x-original-method': 'GET', 'x-original-uri': '/files/a' };
  test.each<[string, Headers, string?, string?]>([
    ['no header at all', {}],
    ['only the method', { 'x-original-method': 'GET' }],
    ['only the path, in a header', { 'x-original-uri': '/files/a' }],
    ['only the path, on a check request with another method', { 'x-forwarded-uri': '/files/a' }, CHECK, 'POST'],
    ['two different paths', { ...ORIGINAL_REQUEST, 'x-forwarded-uri': '/health' }],
    ['two different queries', { ...ORIGINAL_REQUEST, 'x-forwarded-uri': '/files/a?b' }],
    ['a path and another URL', { ...ORIGINAL_REQUEST, 'x-original-url': 'https://localhost:8443/health' }],
    ['the same header twice', { ...ORIGINAL_REQUEST, 'x-original-uri': ['/files/a', '/health'] }],
    ['the same header twice with one value', { ...ORIGINAL_REQUEST, 'x-original-uri': ['/files/a', '/files/a'] }],
    ['two methods', { ...ORIGINAL_REQUEST, 'x-original-method': ['GET', 'GET'] }],
    ['two different methods', { ...ORIGINAL_REQUEST, 'x-forwarded-method': 'POST' }],
    ['two hosts', { ...ORIGINAL_REQUEST, 'x-forwarded-host': ['a.test', 'b.test'] }],
    ['a list of hosts', { ...ORIGINAL_REQUEST, 'x-forwarded-host': 'a.test, b.test' }],
    [
      'a host and another in the URL',
      {
        ...ORIGINAL_REQUEST,
        'x-original-url': 'https://localhost:8443/files/a',
        'x-forwarded-host': 'b.test',
      },
    ],
    [
      'a scheme and another in the URL',
      {
        ...ORIGINAL_REQUEST,
        'x-original-url': 'https://localhost:8443/files/a',
        'x-forwarded-proto': 'http',
      },
    ],
    ['a malformed scheme', { ...ORIGINAL_REQUEST, 'x-forwarded-proto': 'https,http' }],
    ['an empty header', { ...ORIGINAL_REQUEST, 'x-forwarded-uri': '' }],
    ['a URL where a path belongs', { ...ORIGINAL_REQUEST, 'x-original-uri': 'https://localhost:8443/files/a' }],
    ['a URL of a host that is not ours', { 'x-original-method': 'GET', 'x-original-url': 'https://evil.test/files/a' }],
    [
      'a URL with user information',
      { 'x-original-method': 'GET', 'x-original-url': 'https://localhost:8443@evil.test/files/a' },
    ],
    ['a URL with another scheme', { 'x-original-method': 'GET', 'x-original-url': 'ftp://localhost:8443/files/a' }],
    ['a method in lower case', { ...ORIGINAL_REQUEST, 'x-original-method': 'get' }],
    ['a method of 33 letters', { ...ORIGINAL_REQUEST, 'x-original-method': 'G'.repeat(33) }],
    ['a list of methods', { ...ORIGINAL_REQUEST, 'x-original-method': 'GET, POST' }],
    ['TRACE', { ...ORIGINAL_REQUEST, 'x-original-method': 'TRACE' }],
    ['CONNECT', { ...ORIGINAL_REQUEST, 'x-original-method': 'CONNECT' }],
    ['an asterisk target', { 'x-original-method': 'OPTIONS', 'x-original-uri': '*' }],
    ['a header and another path after /check', ORIGINAL_REQUEST, `${CHECK}/health`],
    [
      'a method header that differs from the check request',
      { 'x-forwarded-method': 'GET' },
      `${CHECK}/files/a`,
      'POST',
    ],
    ['a host header that differs from the check request', { 'x-forwarded-host': 'b.test' }, `${CHECK}/files/a`],
  ])('is ambiguous, so 403: %s', async (_, headers, path = CHECK, method = 'GET') => {
    const reply = await check({ ...bearer(), ...headers }, { path, method });
    expect(reply.status).toBe(403);
    expect(reply.headers['x-forwarded-user']).toBeUndefined();
  });

  test('is accepted when all headers agree', async () => {
    const reply = await check({
      ...bearer(),
      ...ORIGINAL_REQUEST,
      'x-forwarded-method': 'GET',
      'x-forwarded-uri': '/files/a',
      'x-original-url': 'https://localhost:8443/files/a',
      'x-forwarded-host': 'LOCALHOST',
      'x-forwarded-proto': 'https',
    });
    expect(reply.status).toBe(200);
  });

  test('headers with similar names are ignored', async () => {
    const reply = await check({
      ...bearer(),
      ...ORIGINAL_REQUEST,
      x_original_uri: '/health',
      'x.forwarded.uri': '/health',
    });
    expect(reply.status).toBe(200);
    expect(reply.headers['x-forwarded-user']).toBe(ALICE);
  });

  test('is logged without its query, and so is the reason why it is ambiguous', async () => {
    const before = setUp.gateway.log.length;
    await nginx('GET', '/files/log?secret=1', bearer());
    await check({ ...bearer(), 'x-original-uri': '/files/a' });
    await expect.poll(() => setUp.gateway.log.slice(before).filter(({ event }) => event === 'request').length).toBe(2);
    const lines = setUp.gateway.log.slice(before);
    expect(lines.find(({ event }) => event === 'request')).toMatchObject({
      original: 'GET /files/log',
      rule: expect.stringContaining('/files/**'),
      decision: 'allowed',
      identity: ALICE,
    });
    expect(lines.find(({ event }) => event === 'forward_auth_ambiguous')).toMatchObject({
      detail: 'no header names the method',
    });
    expect(JSON.stringify(lines)).not.toContain('secret=1');
  });
});

describe('where rules require a host', () => {
  beforeAll(() =>
    setUp.gateway.reload(() => ({
      ...setUp.defaultSettings,
      routes: [...HOST_ROUTES, ...(setUp.defaultSettings.routes ?? [])],
    })),
  );
  afterAll(() => setUp.gateway.reload(() => setUp.defaultSettings));

  const send = (headers: Headers, path = CHECK) =>
    check({ 'x-original-method': 'GET', 'x-original-uri': '/lobby', ...headers }, { path });

  test('the forwarded host is used, not that of the check request', async () => {
    expect((await send({ 'x-forwarded-host': 'open.example.test' })).status).toBe(200);
    expect((await send({ 'x-forwarded-host': 'shut.example.test', host: 'open.example.test' })).status).toBe(401);
  });

  test('a URL is trusted for the hosts of rules', async () => {
    const url = (host: string) => check({ 'x-original-method': 'GET', 'x-original-url': `https://${host}/lobby` });
    expect((await url('open.example.test')).status).toBe(200);
    expect((await url('shut.example.test')).status).toBe(401);
    expect((await url('other.example.test')).status).toBe(403);
  });

  test('a check request without a host is rejected', async () => {
    expect((await send({ host: 'open.example.test' })).status).toBe(403);
  });

  test('Envoy sends the host as that of its check request', async () => {
    const path = `${CHECK}/lobby`;
    expect((await check({ host: 'open.example.test' }, { path })).status).toBe(200);
    expect((await check({ host: 'shut.example.test' }, { path })).status).toBe(401);
  });
});
