import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { withCodeClients } from '../support/code-client.ts';
import { runCommand } from '../support/command-in-process.ts';
import { BASE } from '../support/pages-harness.ts';
import { type Reply, startGateway, type TestGateway } from '../support/test-gateway.ts';

const API = 'api.example.test';
const PAGES = 'login.example.test';

describe('pages with a host of their own', () => {
  let gateway: TestGateway;
  beforeAll(async () => {
    gateway = await startGateway((settings) => ({
      ...withCodeClients(settings),
      publicUrl: `https://${API}`,
      pages: { url: `https://${PAGES}` },
      trustedProxies: ['127.0.0.1'],
      routes: [
        { path: '/open/**', public: true, cors: { origins: ['https://elsewhere.example'] } },
        ...(settings.routes ?? []),
      ],
    }));
  });
  afterAll(() => gateway.close());

  const requestAt = (
    host: string,
    path: string,
    more: Partial<Parameters<TestGateway['request']>[0]> = {},
  ): Promise<Reply> => gateway.request({ path, ...more, headers: { host, ...more.headers } });

  test('both APIs return a verification URI on the host of the pages', async () => {
    const body = { client_id: 'report-runner', scope: 'files:read' };
    const seed = await gateway.post('/Authorize/Device', body, { headers: { host: API } });
    expect(seed.json['verification_uri']).toBe(`https://${PAGES}/authsvc/device`);
    expect(seed.json['verification_uri_complete']).toBe(
      `https://${PAGES}/authsvc/device?user_code=${String(seed.json['user_code'])}`,
    );
    const standard = await requestAt(API, '/authsvc/oauth2/device_authorization', {
      method: 'POST',
      body: new URLSearchParams(body).toString(),
      headers: { 'content-type': 'application/x-www-form-urlencoded' },
    });
    expect(standard.json['verification_uri']).toBe(`https://${PAGES}/authsvc/device`);
  });

  test.each([PAGES, `${PAGES}:8443`, PAGES.toUpperCase(), `${PAGES}.`])(
    'the pages are served on their host, written as %s',
    async (host) => {
      const page = await requestAt(host, BASE);
      expect(page.status).toBe(200);
      expect(page.text).toContain('Connect a device');
      expect(page.headers['set-cookie']?.[0]).toMatch(/^__Host-gatehouse=/);
      expect(page.headers['set-cookie']?.[0]).not.toContain('Domain');
    },
  );

  test('the authorization endpoint redirects from the host of the API to that of the pages, and serves requests only there', async () => {
    const path = '/authsvc/oauth2/authorize?client_id=app&state=a%20b';
    const first = await requestAt(API, path);
    expect([first.status, first.headers.location]).toEqual([303, `https://${PAGES}${path}`]);
    expect(first.headers['set-cookie']).toBeUndefined();
    expect((await requestAt(PAGES, path)).text).toContain('redirect_uri is missing');
    expect((await requestAt('gateway.internal', path)).status).toBe(421);
    expect((await requestAt(API, path, { method: 'POST' })).status).toBe(421);
    for (const other of ['/authsvc/oauth2/token', '/authsvc/oauth2/par', '/authsvc/oauth2/authorize/x'])
      expect((await requestAt(PAGES, other, { method: 'POST' })).status, other).toBe(421);
  });

  test('on the host of the API, URLs that users bookmark redirect to the pages, and all others are rejected', async () => {
    const first = await requestAt(API, `${BASE}?user_code=bcdfghjk&x=1`);
    expect([first.status, first.headers.location]).toEqual([303, `https://${PAGES}${BASE}?user_code=BCDF-GHJK`]);
    expect((await requestAt(API, `${BASE}/grants`)).headers.location).toBe(`https://${PAGES}${BASE}/grants`);
    expect(first.headers['set-cookie']).toBeUndefined();
    // A third host: a front proxy has changed it, so a redirect would loop.
    expect((await requestAt('gateway.internal', BASE)).status).toBe(421);
    for (const [method, place] of [
      ['GET', '/review'],
      ['GET', '/sign-in'],
      ['GET', '/openid/works'],
      ['POST', ''],
      ['POST', '/approve'],
      ['POST', '/sign-in'],
    ] as const) {
      const rejected = await requestAt(API, `${BASE}${place}`, {
        method,
        headers: { 'content-type': 'application/x-www-form-urlencoded' },
      });
      expect(rejected.status, `${method} ${place}`).toBe(421);
      expect(rejected.text).not.toContain('form_token');
      expect(rejected.headers['set-cookie']).toBeUndefined();
    }
  });

  test.each([
    ['an API route', '/files/1'],
    ['a public route', '/health'],
    ['no route', '/nothing'],
    ['the token API', '/authsvc/Authorize/Verify'],
    ['the OAuth endpoints', '/authsvc/oauth2/jwks'],
    ['the metadata', '/.well-known/oauth-authorization-server'],
    ['the metadata of the API', '/.well-known/oauth-protected-resource/files/1'],
  ])('the host of the pages serves nothing else: %s', async (_what, path) => {
    const { access_token: token } = await gateway.grant();
    const before = gateway.upstream.requests.length;
    for (const host of [PAGES, `${PAGES}:443`, PAGES.toUpperCase(), `${PAGES}.`]) {
      const rejected = await requestAt(host, path, { headers: { authorization: `Bearer ${token}` } });
      expect(rejected.status, host).toBe(421);
    }
    expect(gateway.upstream.requests).toHaveLength(before);
  });

  test('a preflight on the host of the pages allows nothing', async () => {
    const headers = { origin: 'https://elsewhere.example', 'access-control-request-method': 'GET' };
    const allowed = await requestAt(API, '/open/x', { method: 'OPTIONS', headers });
    expect(allowed.headers['access-control-allow-origin']).toBe('https://elsewhere.example');
    const rejected = await requestAt(PAGES, '/open/x', { method: 'OPTIONS', headers });
    expect([rejected.status, rejected.headers['access-control-allow-origin']]).toEqual([421, undefined]);
  });

  test('forward-auth rejects a request for the host of the pages, and one without a host', async () => {
    const check = (headers: Readonly<Record<string, string>>): Promise<Reply> =>
      requestAt(API, '/authsvc/check', {
        headers: { 'x-forwarded-method': 'GET', 'x-forwarded-uri': '/health', ...headers },
      });
    expect((await check({ 'x-forwarded-host': API })).status).toBe(200);
    expect((await check({ 'x-forwarded-host': PAGES })).status).toBe(403);
    expect((await check({})).status).toBe(403);
  });

  test('gatehouse explain reports the same decision', async () => {
    const config = join(gateway.folder, 'gatehouse.yaml');
    const explainDecision = async (host: string, path: string): Promise<unknown> => {
      const args = ['explain', '-c', config, '--output', 'json', '--host', host, 'GET', path];
      return (JSON.parse((await runCommand(args)).stdout) as Record<string, unknown>)['verdict'];
    };
    expect(await explainDecision(PAGES, '/health')).toBe('misdirected');
    expect(await explainDecision(PAGES, '/authsvc/Authorize/Verify')).toBe('misdirected');
    expect(await explainDecision(PAGES, BASE)).toBe('handled_by_gatehouse');
    expect(await explainDecision(API, '/health')).toBe('public');
  });

  test('a service worker of the API is allowed', async () => {
    const headers = { 'service-worker': 'script' };
    expect((await requestAt(API, '/health', { headers })).status).toBe(200);
  });
});

describe('pages on the origin of the API', () => {
  let gateway: TestGateway;
  beforeAll(async () => {
    gateway = await startGateway((settings) => ({
      ...settings,
      trustedProxies: ['127.0.0.1'],
    }));
  });
  afterAll(() => gateway.close());

  test.each(['Service-Worker', 'service-worker'])('a service worker script (%s) is rejected', async (name) => {
    const before = gateway.upstream.requests.length;
    const rejected = await gateway.request({ path: '/health', headers: { [name]: 'script' } });
    expect(rejected.status).toBe(403);
    expect(rejected.json).toMatchObject({ error: 'service_worker_not_allowed' });
    const request = await gateway.request({
      path: '/authsvc/check',
      headers: { [name]: 'script', 'x-forwarded-method': 'GET', 'x-forwarded-uri': '/health' },
    });
    expect(request.status).toBe(403);
    expect(gateway.upstream.requests).toHaveLength(before);
    expect((await gateway.request({ path: '/health' })).status).toBe(200);
  });

  test.each([
    ['fetch', { 'sec-fetch-mode': 'cors', 'sec-fetch-dest': 'empty', 'sec-fetch-site': 'same-origin' }],
    ['a frame', { 'sec-fetch-mode': 'navigate', 'sec-fetch-dest': 'iframe', 'sec-fetch-site': 'same-origin' }],
    ['a worker', { 'sec-fetch-mode': 'same-origin', 'sec-fetch-dest': 'serviceworker' }],
    ['an image', { 'sec-fetch-mode': 'no-cors', 'sec-fetch-dest': 'image', 'sec-fetch-site': 'cross-site' }],
    ['only a site', { 'sec-fetch-site': 'same-origin' }],
    [
      'a navigation preload',
      {
        'sec-fetch-mode': 'navigate',
        'sec-fetch-dest': 'document',
        'service-worker-navigation-preload': 'true',
      },
    ],
  ])('a page is not served to %s', async (_what, headers) => {
    const rejected = await gateway.request({ path: BASE, headers });
    expect(rejected.status).toBe(403);
    expect(rejected.text).not.toContain('form_token');
    expect(rejected.headers['set-cookie']).toBeUndefined();
  });

  test.each(['none', 'same-origin', 'same-site', 'cross-site'])(
    'a navigation from anywhere (%s) opens the first page',
    async (site) => {
      const headers = { 'sec-fetch-mode': 'navigate', 'sec-fetch-dest': 'document', 'sec-fetch-site': site };
      expect((await gateway.request({ path: BASE, headers })).status).toBe(200);
    },
  );
});
