import { connect as connectHttp2, constants } from 'node:http2';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { scrape } from '../../support/scrape.ts';
import { type Reply, type SettingsChange, startGateway, type TestGateway } from '../../support/test-gateway.ts';
import { openWebSocket, startWebSocketUpstream } from '../../support/websocket.ts';

const HOUR = 3_600;
const statuses = async (count: number, send: () => Promise<{ readonly status: number }>): Promise<number[]> => {
  const all: number[] = [];
  for (let index = 0; index < count; index += 1) all.push((await send()).status);
  return all;
};

const withRoutes =
  (routes: Parameters<SettingsChange>[0]['routes'], limits: object = {}): SettingsChange =>
  (settings) => ({
    ...settings,
    trustedProxies: ['127.0.0.1'],
    routes: routes ?? [],
    limits: { ...settings.limits, ...limits },
  });

async function start(change: SettingsChange): Promise<TestGateway> {
  const gateway = await startGateway(change);
  onTestFinished(() => gateway.close());
  return gateway;
}

describe('quotas of routes', () => {
  let gateway: TestGateway;
  let alice: string;
  let bob: string;
  beforeAll(async () => {
    const routes = withRoutes(
      [
        { path: '/open/**', public: true, rate: '2/h' },
        { path: '/free/**', public: true },
        { path: '/files/**', requires: 'files:read', rate: [{ limit: '3/h', per: 'identity' }] },
        { path: '/reports/**', requires: 'reports:write', rate: [{ limit: '2/h', burst: 4 }] },
        { path: '/client/**', requires: 'any-token', rate: [{ limit: '2/h', per: 'client' }] },
        { path: '/route/**', requires: 'any-token', rate: [{ limit: '5/h', per: 'route' }, '2/h'] },
        { path: '/tried/**', requires: 'any-token', rate: '1/h', reportOnly: true },
        { path: '/shared/**', requires: 'any-token', rate: '1/h', cors: { origins: ['https://app.test'] } },
        { path: '/state/**', requires: 'any-token', rate: '9/h' },
      ],
      { rateLimitHeaders: true },
    );
    gateway = await startGateway(routes);
    alice = (await gateway.grant({ scope: 'files:read;reports:write' })).access_token;
    bob = (await gateway.grant({ user: 'bob', scope: 'files:read' })).access_token;
  });
  afterAll(() => gateway.close());

  const get = (path: string, token?: string, headers: Record<string, string> = {}): Promise<Reply> =>
    gateway.api(path, token, { headers });
  const from = (address: string) => ({ 'x-forwarded-for': address });

  test('requests beyond the limit get 429 and do not reach the upstream, until there is quota again', async () => {
    gateway.upstream.requests.length = 0;
    expect(await statuses(5, () => get('/files/a', alice))).toEqual([200, 200, 200, 429, 429]);
    expect(gateway.upstream.requests).toHaveLength(3);
    const refused = await get('/files/a', alice);
    expect(refused.json).toMatchObject({
      error: 'too_many_requests',
      request_id: refused.headers['x-request-id'],
    });
    expect(refused.headers).toMatchObject({
      'retry-after': expect.stringMatching(/^1[12]\d\d$/) as unknown,
      'ratelimit-policy': '"identity";q=3;w=3600',
      'cache-control': 'no-store',
    });
    expect(refused.headers['ratelimit']).toBe(`"identity";r=0;t=${refused.headers['retry-after']}`);
    // Another caller, and another route, have quotas of their own.
    expect((await get('/files/a', bob)).status).toBe(200);
    gateway.clock.advance(HOUR / 3);
    expect(await statuses(2, () => get('/files/a', alice))).toEqual([200, 429]);
  });

  test('a refused request takes nothing: neither from its caller nor from others', async () => {
    const junk = `${alice.slice(0, -6)}AAAAAA`;
    for (let index = 0; index < 6; index += 1) {
      expect((await get('/reports/a')).status).toBe(401);
      expect((await get('/reports/a', junk)).status).toBe(401);
      // Too little scope.
      expect((await get('/reports/a', bob)).status).toBe(403);
    }
    expect(await statuses(6, () => get('/reports/a', alice))).toEqual([200, 200, 200, 200, 429, 429]);
    expect((await get('/reports/a', alice)).headers['ratelimit-policy']).toBe(
      '"identity";q=2;w=3600;gatehouse-burst=4',
    );
  });

  test('a body counts once, and is refused before or after it has arrived', async () => {
    const grant = await gateway.grant({ clientId: 'other-app', scope: 'files:read' });
    const post = (chunked: boolean): Promise<Reply> =>
      gateway.request({
        path: '/client/upload',
        method: 'POST',
        headers: {
          authorization: `Bearer ${grant.access_token}`,
          ...(chunked ? { 'transfer-encoding': 'chunked' } : { 'content-length': '70000' }),
        },
        body: 'x'.repeat(70_000),
      });
    expect([(await post(true)).status, (await post(false)).status]).toEqual([200, 200]);
    const refused = await Promise.all([post(true), post(false)]);
    expect(refused.map(({ status }) => status)).toEqual([429, 429]);
    expect(refused[0].headers['ratelimit-policy']).toBe('"client";q=2;w=3600');
  });

  test('a public route counts by client address, as trusted proxies forward it', async () => {
    expect(await statuses(3, () => get('/open/a', undefined, from('192.0.2.1')))).toEqual([200, 200, 429]);
    expect(await statuses(3, () => get('/open/a', undefined, from('2001:db8::1')))).toEqual([200, 200, 429]);
    expect((await get('/open/a', undefined, from('2001:db8::2'))).status).toBe(429);
    expect((await get('/open/a', undefined, from('2001:db8:1::2'))).status).toBe(200);
    // A token makes no difference on a public route.
    expect((await get('/open/a', alice, from('192.0.2.1'))).status).toBe(429);
    expect((await get('/open/a', undefined, from('192.0.2.1'))).headers['ratelimit-policy']).toBe(
      '"address";q=2;w=3600',
    );
  });

  test('several limits apply together, and the response names all of them', async () => {
    expect(await statuses(4, () => get('/route/a', alice))).toEqual([200, 200, 429, 429]);
    expect(await statuses(2, () => get('/route/a', bob))).toEqual([200, 200]);
    const refused = await get('/route/a', alice);
    expect(refused.headers['ratelimit-policy']).toBe('"route";q=5;w=3600, "identity";q=2;w=3600');
    expect(refused.headers['ratelimit']).toMatch(/^"route";r=1;t=1, "identity";r=0;t=\d+$/);
  });

  test('a route that only reports forwards the request, and logs what it would refuse', async () => {
    expect(await statuses(2, () => get('/tried/a', bob))).toEqual([200, 200]);
    const lines = gateway.log.filter(({ event, path }) => event === 'request' && path === '/tried/a');
    expect(lines.map(({ decision, reason }) => [decision, reason])).toEqual([
      ['forwarded', undefined],
      ['would_refuse', 'rate_limited: identity'],
    ]);
  });

  test('pages of allowed origins can read the refusal, and a preflight takes nothing', async () => {
    const origin = { origin: 'https://app.test' };
    for (let index = 0; index < 3; index += 1) {
      const preflight = await gateway.api('/shared/a', undefined, {
        method: 'OPTIONS',
        headers: { ...origin, 'access-control-request-method': 'GET' },
      });
      expect(preflight.status).toBe(204);
    }
    expect((await get('/shared/a', alice, origin)).status).toBe(200);
    const refused = await get('/shared/a', alice, origin);
    expect([refused.status, refused.headers['access-control-allow-origin']]).toEqual([429, 'https://app.test']);
  });

  test('with limits.rateLimitHeaders, forwarded responses have the state of the quota', async () => {
    expect((await get('/free/a')).headers).not.toHaveProperty('ratelimit');
    const first = await get('/state/a', alice);
    expect(first.headers).toMatchObject({
      'ratelimit-policy': '"identity";q=9;w=3600',
      ratelimit: '"identity";r=8;t=1',
    });
    await gateway.reload((settings) => ({
      ...settings,
      limits: { ...settings.limits, rateLimitHeaders: false },
    }));
    expect((await get('/state/a', alice)).headers).not.toHaveProperty('ratelimit');
  });

  test('log and metrics name the route and the limit', async () => {
    const [line] = gateway.log.filter(({ event, status }) => event === 'request' && status === 429);
    expect(line).toMatchObject({
      rule: 'routes[2] /files/**',
      decision: 'refused',
      reason: 'rate_limited: identity',
      client: 'report-runner',
    });
    const metrics = await scrape(gateway.adminPort);
    const labels = 'rule="routes[2] /files/**",limit="identity"';
    expect(metrics.value(`gatehouse_rate_limited_requests_total{${labels}}`)).toBeGreaterThan(2);
    expect(metrics.value('gatehouse_auth_decisions_total{decision="refused",reason="rate_limited"}')).toBeGreaterThan(
      2,
    );
    expect(metrics.value('gatehouse_rate_limit_keys')).toBeGreaterThan(3);
    expect(metrics.value('gatehouse_rate_limit_overflow_total')).toBe(0);
  });
});

test('limits.routes is the default of all routes, and off removes it', async () => {
  const gateway = await start(
    withRoutes(
      [
        { path: '/health', public: true },
        { path: '/free/**', requires: 'any-token', rate: 'off' },
        { path: '/own/**', requires: 'any-token', rate: '4/h' },
        { path: '/files/**', requires: 'any-token' },
      ],
      { routes: '2/h' },
    ),
  );
  const { access_token: token } = await gateway.grant();
  const count = async (path: string): Promise<number> =>
    (await statuses(6, () => gateway.api(path, token))).filter((status) => status === 200).length;
  expect([await count('/health'), await count('/free/a'), await count('/own/a'), await count('/files/a')]).toEqual([
    2, 6, 4, 2,
  ]);
});

test('a reload keeps the counts of unchanged limits, also of a route that moves; a changed rate starts again', async () => {
  const files = { path: '/files/**', requires: 'files:read', rate: '2/h' };
  const reports = { path: '/reports/**', requires: 'reports:write', rate: '2/h' };
  const gateway = await start(withRoutes([files, reports]));
  const { access_token: token } = await gateway.grant({ scope: 'files:read;reports:write' });
  const getFile = () => gateway.api('/files/a', token);
  const getReport = () => gateway.api('/reports/a', token);
  expect(await statuses(3, getFile)).toEqual([200, 200, 429]);
  expect(await statuses(3, getReport)).toEqual([200, 200, 429]);
  await gateway.reload(withRoutes([{ path: '/new', public: true }, { ...reports, rate: '3/h' }, files]));
  expect(await statuses(1, getFile)).toEqual([429]);
  expect(await statuses(4, getReport)).toEqual([200, 200, 200, 429]);
  // No limit, and then the old one again: nothing was counted meanwhile, and nothing is remembered.
  await gateway.reload(withRoutes([{ ...files, rate: 'off' }]));
  expect(await statuses(3, getFile)).toEqual([200, 200, 200]);
  await gateway.reload(withRoutes([files]));
  expect(await statuses(3, getFile)).toEqual([200, 200, 429]);
});

test('requests over HTTP/2 count like those over HTTP/1.1', async () => {
  const gateway = await start(withRoutes([{ path: '/files/**', requires: 'files:read', rate: '3/h' }]));
  const { access_token: token } = await gateway.grant();
  const session = connectHttp2(`https://127.0.0.1:${gateway.port}`, {
    ca: gateway.ca.pem,
    servername: 'localhost',
  });
  onTestFinished(() => session.destroy());
  const send = (): Promise<{ status: number; headers: Record<string, unknown> }> =>
    new Promise((resolve, reject) => {
      const stream = session.request({
        ':path': '/files/a',
        ':authority': 'localhost',
        authorization: `Bearer ${token}`,
      });
      stream.on('response', (headers) => resolve({ status: Number(headers[constants.HTTP2_HEADER_STATUS]), headers }));
      stream.on('error', reject);
      stream.resume().end();
    });
  const parallel = await Promise.all(Array.from({ length: 5 }, send));
  expect(parallel.map(({ status }) => status).toSorted((a, b) => a - b)).toEqual([200, 200, 200, 429, 429]);
  expect(parallel.find(({ status }) => status === 429)?.headers).toMatchObject({
    'retry-after': expect.stringMatching(/^\d+$/) as unknown,
    ratelimit: expect.stringMatching(/^"identity";r=0;t=\d+$/) as unknown,
  });
  expect((await gateway.api('/files/a', token)).status).toBe(429);
});

test('a WebSocket handshake counts as one request, and is refused with 429', async () => {
  const webSockets = await startWebSocketUpstream();
  onTestFinished(() => webSockets.close());
  const gateway = await start((settings) => ({
    ...settings,
    upstreams: { default: { url: `http://127.0.0.1:${webSockets.port}` } },
    routes: [{ path: '/ws/**', requires: 'any-token', websocket: true, rate: '1/h' }],
  }));
  const { access_token: token } = await gateway.grant();
  const open = () => openWebSocket({ port: gateway.port, token, ca: gateway.ca.pem });
  const first = await open();
  onTestFinished(() => first.destroy());
  expect(first.status).toBe(101);
  for (let index = 0; index < 3; index += 1) first.send('one');
  const second = await open();
  onTestFinished(() => second.destroy());
  expect(second.status).toBe(429);
  expect(second.head).toMatch(/\r\nratelimit: "identity";r=0;t=\d+/i);
  expect(webSockets.handshakes).toHaveLength(1);
});

test('forward-auth responds with 429, and counts only what it allows', async () => {
  const gateway = await start(
    withRoutes([
      { path: '/files/**', requires: 'files:read', rate: '2/h' },
      { path: '/open/**', public: true, rate: '1/h' },
    ]),
  );
  const { access_token: token } = await gateway.grant();
  const check = (uri: string, headers: Record<string, string> = {}): Promise<Reply> =>
    gateway.request({
      path: '/authsvc/check',
      headers: {
        'x-forwarded-method': 'GET',
        'x-forwarded-uri': uri,
        'x-forwarded-host': 'localhost',
        ...headers,
      },
    });
  const withToken = { authorization: `Bearer ${token}` };
  expect((await check('/files/a')).status).toBe(401);
  expect((await check('/files/%61', withToken)).status).toBe(403);
  expect((await check('/none', withToken)).status).toBe(403);
  expect(await statuses(3, () => check('/files/a', withToken))).toEqual([200, 200, 429]);
  const refused = await check('/files/a', withToken);
  expect(refused.headers['retry-after']).toMatch(/^\d+$/);
  expect(refused.headers['ratelimit-policy']).toBe('"identity";q=2;w=3600');
  // The quota is that of the route, whichever way its requests come.
  expect((await gateway.api('/files/a', token)).status).toBe(429);
  expect(await statuses(2, () => check('/open/a', { 'x-forwarded-for': '192.0.2.7' }))).toEqual([200, 429]);
  expect((await check('/open/a', { 'x-forwarded-for': '192.0.2.8' })).status).toBe(200);
});
