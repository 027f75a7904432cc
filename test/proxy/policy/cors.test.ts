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

const send = (line: string, headers: readonly string[] = [], token?: string): Promise<RawResponse> =>
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
  send(`OPTIONS ${path}`, [`Origin: ${origin}`, `Access-Control-Request-Method: ${method}`, ...more]);

/** All values of a response field. */
const fieldValues = ({ head }: RawResponse, name: string): string[] =>
  head
    .split('\r\n')
    .filter((line) => line.toLowerCase().startsWith(`${name}:`))
    .map((line) => line.slice(name.length + 1).trim());

const ALLOW = 'access-control-allow-origin';

describe('preflights', () => {
  test('get a response from the gateway, without a token, according to the rule that the actual request would match', async () => {
    const response = await preflight('/files/1', APP, 'GET', ['Access-Control-Request-Headers: authorization']);
    expect(response.status).toBe(204);
    expect(response.body).toBe('');
    expect(fieldValues(response, ALLOW)).toEqual([APP]);
    expect(fieldValues(response, 'access-control-allow-methods')).toEqual(['GET']);
    expect(fieldValues(response, 'access-control-allow-headers')).toEqual(['Authorization, Content-Type']);
    expect(fieldValues(response, 'access-control-max-age')).toEqual(['600']);
    expect(fieldValues(response, 'access-control-allow-credentials')).toEqual([]);
    expect(fieldValues(response, 'vary')).toEqual([
      'Origin, Access-Control-Request-Method, Access-Control-Request-Headers',
    ]);
    expect(fieldValues(response, 'content-length')).toEqual([]);
    expect(upstream.connectionCount()).toBe(0);
    expect(proxy.notes.at(-1)).toEqual({ rule: '/files/**', decision: 'handled', reason: 'preflight' });
  });

  test('list the configured methods and header fields, whatever was requested', async () => {
    const response = await preflight('/narrow/1', APP, 'DELETE', ['Access-Control-Request-Headers: x-evil']);
    expect(fieldValues(response, 'access-control-allow-methods')).toEqual(['GET, POST']);
    expect(fieldValues(response, 'access-control-allow-headers')).toEqual(['X-Own']);
    expect(fieldValues(response, 'access-control-max-age')).toEqual(['0']);
  });

  test.each([
    ['a listed origin', '/files/1', APP, 204, [APP]],
    ['a listed origin with a port', '/files/1', 'https://other.test:8443', 204, ['https://other.test:8443']],
    ['another port', '/files/1', 'https://other.test', 403, []],
    ['another scheme', '/files/1', 'http://app.test', 403, []],
    ['a longer host', '/files/1', 'https://app.test.evil.test', 403, []],
    ['a longer host with the same suffix', '/files/1', 'https://evil-app.test', 403, []],
    ['another case', '/files/1', 'https://APP.test', 403, []],
    ['a trailing slash', '/files/1', 'https://app.test/', 403, []],
    ['null', '/files/1', 'null', 403, []],
    ['two in one', '/files/1', `${APP}, https://evil.test`, 403, []],
    ['any origin, where any origin is allowed', '/anyone/1', 'https://evil.test', 204, ['*']],
    ['null, where any origin is allowed', '/anyone/1', 'null', 204, ['*']],
  ])('%s', async (_what, path, origin, status, allowed) => {
    const response = await preflight(path, origin);
    expect([response.status, fieldValues(response, ALLOW)]).toEqual([status, allowed]);
    if (status === 403) expect(fieldValues(response, 'vary')).toEqual(['Origin']);
    expect(upstream.connectionCount()).toBe(0);
  });

  test('credentials are allowed only where configured, with the exact origin', async () => {
    const response = await preflight('/cookies/1');
    expect(fieldValues(response, 'access-control-allow-credentials')).toEqual(['true']);
    expect(fieldValues(response, ALLOW)).toEqual([APP]);
  });

  test.each([
    ['for a method whose rule has no cors', `OPTIONS /files/1`, ['Access-Control-Request-Method: PUT'], 200],
    ['without a requested method', 'OPTIONS /files/1', [], 200],
    ['for a method in lower case', 'OPTIONS /files/1', ['Access-Control-Request-Method: get'], 200],
    ['for TRACE', 'OPTIONS /files/1', ['Access-Control-Request-Method: TRACE'], 200],
    ['on a route without cors', 'OPTIONS /plain/1', ['Access-Control-Request-Method: GET'], 401],
    ['where no route matches', 'OPTIONS /nowhere', ['Access-Control-Request-Method: GET'], 401],
    ['with two origins', 'OPTIONS /narrow/1', ['Origin: x', 'Access-Control-Request-Method: GET'], 401],
    ['with an invalid path', 'OPTIONS /files/../narrow/1', ['Access-Control-Request-Method: GET'], 400],
    ['with a token in the query', 'OPTIONS /files/1?access_token=A', ['Access-Control-Request-Method: GET'], 400],
  ])('%s OPTIONS is treated like any other request', async (_what, line, headers, status) => {
    const response = await send(line, [`Origin: ${APP}`, ...headers]);
    expect(response.status).toBe(status);
    expect(upstream.requests.length).toBe(status === 200 ? 1 : 0);
    expect(fieldValues(response, 'access-control-allow-methods')).toEqual([]);
  });

  test('OPTIONS with a token is not a preflight', async () => {
    const headers = [`Origin: ${APP}`, 'Access-Control-Request-Method: GET'];
    expect((await send('OPTIONS /narrow/1', headers, 'A')).status).toBe(200);
    expect(upstream.requests[0]?.method).toBe('OPTIONS');
  });
});

describe('responses', () => {
  test('have the allowed origin and the exposed header fields', async () => {
    const response = await send('GET /files/1', [`Origin: ${APP}`], 'A');
    expect(response.status).toBe(200);
    expect(fieldValues(response, ALLOW)).toEqual([APP]);
    expect(fieldValues(response, 'access-control-expose-headers')).toEqual(['ETag, X-Total']);
    expect(fieldValues(response, 'vary')).toEqual(['Origin']);
  });

  test.each([
    ['another origin', ['Origin: https://evil.test']],
    ['null', ['Origin: null']],
    ['two origins', [`Origin: ${APP}`, `Origin: ${APP}`]],
    ['no origin', []],
  ])('%s: forwarded with Vary: Origin and no other CORS field', async (_what, headers) => {
    const response = await send('GET /files/1', headers, 'A');
    expect([response.status, fieldValues(response, ALLOW), fieldValues(response, 'vary')]).toEqual([
      200,
      [],
      ['Origin'],
    ]);
  });

  test("the upstream's own CORS headers are dropped on a route with cors, and kept on others", async () => {
    upstream.respondWith((socket) =>
      socket.write(
        'HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\naccess-control-allow-credentials: true\r\nVary: Accept\r\nContent-Length: 0\r\n\r\n',
      ),
    );
    const ownRoute = await send('GET /files/1', ['Origin: https://evil.test'], 'A');
    expect([fieldValues(ownRoute, ALLOW), fieldValues(ownRoute, 'access-control-allow-credentials')]).toEqual([[], []]);
    expect(fieldValues(ownRoute, 'vary')).toEqual(['Accept', 'Origin']);
    const otherRoute = await send('GET /plain/1', ['Origin: https://evil.test'], 'A');
    expect(fieldValues(otherRoute, ALLOW)).toEqual(['*']);
  });

  test('a response that any origin may read does not vary by origin', async () => {
    const response = await send('GET /anyone/1', ['Origin: https://evil.test']);
    expect([fieldValues(response, ALLOW), fieldValues(response, 'vary')]).toEqual([['*'], []]);
  });

  test.each([
    ['no token', 'GET /files/1', undefined, 401],
    ['a forged token', 'GET /files/1', 'forged', 401],
    ['too little scope', 'GET /admin/1', 'A', 403],
    ['a malformed WebSocket handshake', 'GET /files/1', 'A', 403],
  ])(
    'error responses have the CORS headers too, so that a page can read the reason: %s',
    async (what, line, token, status) => {
      const upgrade = what.includes('WebSocket') ? ['Upgrade: websocket'] : [];
      const response = await send(line, [`Origin: ${APP}`, ...upgrade], token);
      expect([response.status, fieldValues(response, ALLOW)]).toEqual([status, [APP]]);
      const other = await send(line, ['Origin: https://evil.test', ...upgrade], token);
      expect([other.status, fieldValues(other, ALLOW), fieldValues(other, 'vary')]).toEqual([status, [], ['Origin']]);
    },
  );

  test('the response for a failed upstream has the CORS headers', async () => {
    upstream.respondWith((socket) => socket.destroy());
    const response = await send('GET /files/1', [`Origin: ${APP}`], 'A');
    expect([response.status, fieldValues(response, ALLOW)]).toEqual([502, [APP]]);
  });

  test('an unparseable request gets no CORS headers', async () => {
    const response = await send('GET /files/../1', [`Origin: ${APP}`], 'A');
    expect([response.status, fieldValues(response, ALLOW)]).toEqual([400, []]);
  });
});
