import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { CorsPolicy } from '../../../src/domain/cors.ts';
import { type ProxyHarness, rule, startProxyHarness } from '../../support/proxy-harness.ts';
import { type RawResponse, rawRequest } from '../../support/raw-client.ts';
import { type RecordingUpstream, startRecordingUpstream } from '../../support/recording-upstream.ts';

const APP = 'https://app.test';

const policy = (options: Partial<CorsPolicy> = {}): CorsPolicy => ({
  origins: new Set([APP, 'https://other.test:8443']),
  headers: ['Authorization', 'Content-Type'],
  exposeHeaders: [],
  credentials: false,
  maxAge: 600,
  ...options,
});

const RULES = [
  rule('/files/**', 'files:read', {
    methods: ['GET', 'HEAD'],
    cors: policy({ exposeHeaders: ['ETag', 'X-Total'] }),
  }),
  rule('/files/**', 'files:read', { methods: ['PUT'] }),
  rule('/files/**', 'public', { methods: ['OPTIONS'] }),
  rule('/narrow/**', 'files:read', {
    cors: policy({ methods: ['GET', 'POST'], headers: ['X-Own'], maxAge: 0 }),
  }),
  rule('/cookies/**', 'files:read', { cors: policy({ credentials: true }) }),
  rule('/admin/**', 'admin:manage', { cors: policy() }),
  rule('/anyone/**', 'public', { cors: policy({ origins: 'any' }) }),
  rule('/plain/**', 'files:read'),
];

let upstream: RecordingUpstream;
let proxy: ProxyHarness;
beforeAll(async () => {
  upstream = await startRecordingUpstream();
  proxy = await startProxyHarness({ rules: RULES, upstream: upstream.url });
});
afterAll(async () => {
  await proxy.close();
  await upstream.close();
});
beforeEach(() => upstream.reset());

const ask = (line: string, headers: readonly string[] = [], token?: string): Promise<RawResponse> =>
  rawRequest(
    proxy.port,
    [
      `${line} HTTP/1.1`,
      'Host: gate.test',
      ...(token === undefined ? [] : [`Authorization: Bearer ${token}`]),
      ...headers,
      'Content-Length: 0',
      '',
      '',
    ].join('\r\n'),
  );

const preflight = (path: string, origin = APP, method = 'GET', more: readonly string[] = []) =>
  ask(`OPTIONS ${path}`, [`Origin: ${origin}`, `Access-Control-Request-Method: ${method}`, ...more]);

/** All values of a field of an answer. */
const field = ({ head }: RawResponse, name: string): string[] =>
  head
    .split('\r\n')
    .filter((line) => line.toLowerCase().startsWith(`${name}:`))
    .map((line) => line.slice(name.length + 1).trim());

const ALLOW = 'access-control-allow-origin';

describe('preflights', () => {
  test('get a response from the gateway, without a token, under the rule the request itself would match', async () => {
    const response = await preflight('/files/1', APP, 'GET', [
      'Access-Control-Request-Headers: authorization',
    ]);
    expect(response.status).toBe(204);
    expect(response.body).toBe('');
    expect(field(response, ALLOW)).toEqual([APP]);
    expect(field(response, 'access-control-allow-methods')).toEqual(['GET']);
    expect(field(response, 'access-control-allow-headers')).toEqual(['Authorization, Content-Type']);
    expect(field(response, 'access-control-max-age')).toEqual(['600']);
    expect(field(response, 'access-control-allow-credentials')).toEqual([]);
    expect(field(response, 'vary')).toEqual([
      'Origin, Access-Control-Request-Method, Access-Control-Request-Headers',
    ]);
    expect(field(response, 'content-length')).toEqual([]);
    expect(upstream.connectionCount()).toBe(0);
    expect(proxy.notes.at(-1)).toEqual({ rule: '/files/**', decision: 'handled', reason: 'preflight' });
  });

  test('list the configured methods and header fields, whatever was requested', async () => {
    const response = await preflight('/narrow/1', APP, 'DELETE', ['Access-Control-Request-Headers: x-evil']);
    expect(field(response, 'access-control-allow-methods')).toEqual(['GET, POST']);
    expect(field(response, 'access-control-allow-headers')).toEqual(['X-Own']);
    expect(field(response, 'access-control-max-age')).toEqual(['0']);
  });

  test.each([
    ['a listed origin', '/files/1', APP, 204, [APP]],
    ['a listed origin with a port', '/files/1', 'https://other.test:8443', 204, ['https://other.test:8443']],
    ['another port', '/files/1', 'https://other.test', 403, []],
    ['another scheme', '/files/1', 'http://app.test', 403, []],
    ['a longer host', '/files/1', 'https://app.test.evil.test', 403, []],
    ['a host before it', '/files/1', 'https://evil-app.test', 403, []],
    ['another case', '/files/1', 'https://APP.test', 403, []],
    ['a path behind it', '/files/1', 'https://app.test/', 403, []],
    ['null', '/files/1', 'null', 403, []],
    ['two in one', '/files/1', `${APP}, https://evil.test`, 403, []],
    ['every origin, where every origin may', '/anyone/1', 'https://evil.test', 204, ['*']],
    ['null, where every origin may', '/anyone/1', 'null', 204, ['*']],
  ])('%s', async (_what, path, origin, status, allowed) => {
    const response = await preflight(path, origin);
    expect([response.status, field(response, ALLOW)]).toEqual([status, allowed]);
    if (status === 403) expect(field(response, 'vary')).toEqual(['Origin']);
    expect(upstream.connectionCount()).toBe(0);
  });

  test('credentials are allowed only where configured, with the exact origin', async () => {
    const response = await preflight('/cookies/1');
    expect(field(response, 'access-control-allow-credentials')).toEqual(['true']);
    expect(field(response, ALLOW)).toEqual([APP]);
  });

  test.each([
    ['for a method whose rule has no cors', `OPTIONS /files/1`, ['Access-Control-Request-Method: PUT'], 200],
    ['without the method', 'OPTIONS /files/1', [], 200],
    ['for a method in small letters', 'OPTIONS /files/1', ['Access-Control-Request-Method: get'], 200],
    ['for TRACE', 'OPTIONS /files/1', ['Access-Control-Request-Method: TRACE'], 200],
    ['where there is no cors', 'OPTIONS /plain/1', ['Access-Control-Request-Method: GET'], 401],
    ['where nothing matches', 'OPTIONS /nowhere', ['Access-Control-Request-Method: GET'], 401],
    ['with two origins', 'OPTIONS /narrow/1', ['Origin: x', 'Access-Control-Request-Method: GET'], 401],
    ['with a bad path', 'OPTIONS /files/../narrow/1', ['Access-Control-Request-Method: GET'], 400],
    [
      'with a token in the query',
      'OPTIONS /files/1?access_token=A',
      ['Access-Control-Request-Method: GET'],
      400,
    ],
  ])('%s an OPTIONS is a request like any other', async (_what, line, headers, status) => {
    const response = await ask(line, [`Origin: ${APP}`, ...headers]);
    expect(response.status).toBe(status);
    expect(upstream.requests.length).toBe(status === 200 ? 1 : 0);
    expect(field(response, 'access-control-allow-methods')).toEqual([]);
  });

  test('with a token it is not a preflight', async () => {
    const headers = [`Origin: ${APP}`, 'Access-Control-Request-Method: GET'];
    expect((await ask('OPTIONS /narrow/1', headers, 'A')).status).toBe(200);
    expect(upstream.requests[0]?.method).toBe('OPTIONS');
  });
});

describe('responses', () => {
  test('have the allowed origin and the exposed header fields', async () => {
    const response = await ask('GET /files/1', [`Origin: ${APP}`], 'A');
    expect(response.status).toBe(200);
    expect(field(response, ALLOW)).toEqual([APP]);
    expect(field(response, 'access-control-expose-headers')).toEqual(['ETag, X-Total']);
    expect(field(response, 'vary')).toEqual(['Origin']);
  });

  test.each([
    ['another origin', ['Origin: https://evil.test']],
    ['null', ['Origin: null']],
    ['two origins', [`Origin: ${APP}`, `Origin: ${APP}`]],
    ['no origin', []],
  ])('%s: forwarded with Vary: Origin and no other CORS field', async (_what, headers) => {
    const response = await ask('GET /files/1', headers, 'A');
    expect([response.status, field(response, ALLOW), field(response, 'vary')]).toEqual([200, [], ['Origin']]);
  });

  test("the upstream's own CORS headers are dropped on such a route, and kept on others", async () => {
    upstream.respondWith((socket) =>
      socket.write(
        'HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\naccess-control-allow-credentials: true\r\nVary: Accept\r\nContent-Length: 0\r\n\r\n',
      ),
    );
    const ours = await ask('GET /files/1', ['Origin: https://evil.test'], 'A');
    expect([field(ours, ALLOW), field(ours, 'access-control-allow-credentials')]).toEqual([[], []]);
    expect(field(ours, 'vary')).toEqual(['Accept', 'Origin']);
    const theirs = await ask('GET /plain/1', ['Origin: https://evil.test'], 'A');
    expect(field(theirs, ALLOW)).toEqual(['*']);
  });

  test('where every origin may read it nothing depends on it', async () => {
    const response = await ask('GET /anyone/1', ['Origin: https://evil.test']);
    expect([field(response, ALLOW), field(response, 'vary')]).toEqual([['*'], []]);
  });

  test.each([
    ['no token', 'GET /files/1', undefined, 401],
    ['a forged token', 'GET /files/1', 'forged', 401],
    ['too little scope', 'GET /admin/1', 'A', 403],
    ['a WebSocket in a form that is none', 'GET /files/1', 'A', 403],
  ])('error responses too, so that a page can read the reason: %s', async (what, line, token, status) => {
    const upgrade = what.includes('WebSocket') ? ['Upgrade: websocket'] : [];
    const response = await ask(line, [`Origin: ${APP}`, ...upgrade], token);
    expect([response.status, field(response, ALLOW)]).toEqual([status, [APP]]);
    const other = await ask(line, ['Origin: https://evil.test', ...upgrade], token);
    expect([other.status, field(other, ALLOW), field(other, 'vary')]).toEqual([status, [], ['Origin']]);
  });

  test('an upstream that fails, too', async () => {
    upstream.respondWith((socket) => socket.destroy());
    const response = await ask('GET /files/1', [`Origin: ${APP}`], 'A');
    expect([response.status, field(response, ALLOW)]).toEqual([502, [APP]]);
  });

  test('an unparseable request gets no CORS headers', async () => {
    const response = await ask('GET /files/../1', [`Origin: ${APP}`], 'A');
    expect([response.status, field(response, ALLOW)]).toEqual([400, []]);
  });
});
