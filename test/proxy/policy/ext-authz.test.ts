import { Client, credentials } from '@grpc/grpc-js';
import { beforeAll, describe, expect, onTestFinished, test, vi } from 'vitest';
import {
  type CheckInput,
  decodeCheckResponse,
  EXT_AUTHZ_PATH,
  encodeCheckRequest,
  frameMessage,
  useExtAuthzClient,
} from '../../support/ext-authz-client.ts';
import { forwardedCertificateHeaders } from '../../support/forwarded-certificate.ts';
import { withForwardedCertificates, withSettings } from '../../support/reconfigure.ts';
import { ALICE } from '../../support/test-gateway.ts';
import { until } from '../../support/until.ts';
import { useForwardAuthGateway } from './forward-auth-gateway.ts';

const XFCC = 'X-Forwarded-Client-Cert';

const setUp = useForwardAuthGateway();
const client = useExtAuthzClient(() => setUp.gateway);
const authorization = (token = setUp.token) => ({ authorization: `Bearer ${token}` });

test('an allowed request: the identity is set, and all that a client must not send is removed', async () => {
  const reply = await client.check({
    headers: {
      ...authorization(),
      'x-forwarded-user': 'root',
      x_forwarded_user: 'root',
      'x.forwarded.scope': 'root',
      'x-forwarded-host': 'other.test',
      'x-forwarded-for': '192.0.2.7',
      'x-forwarded-proto': 'https',
      'x-http-method-override': 'DELETE',
      'x-original-url': '/health',
      'x-gatehouse-anything': '1',
      'proxy-authorization': 'Basic eDp5',
      dpop: 'a proof',
      te: 'trailers',
      connection: 'upgrade',
      upgrade: 'websocket',
      'content-length': '0',
      accept: '*/*',
      'x-request-id': '6e1f3b0e-8d0a-4a4e-9d1c-3b6f8f2a7c55',
    },
  });
  expect(reply).toMatchObject({ code: 0, status: 200, responseHeaders: {} });
  expect(reply.headers).toEqual({
    'x-forwarded-user': ALICE,
    'x-forwarded-client-id': 'report-runner',
    'x-forwarded-scope': 'files:read',
    'x-forwarded-preferred-username': 'alice',
    'x-request-id': '6e1f3b0e-8d0a-4a4e-9d1c-3b6f8f2a7c55',
  });
  expect(reply.removed.toSorted()).toEqual([
    'authorization',
    'dpop',
    'proxy-authorization',
    'x-forwarded-host',
    'x-gatehouse-anything',
    'x-http-method-override',
    'x-original-url',
    'x.forwarded.scope',
    'x_forwarded_user',
  ]);
});

test('a public route: every identity header is removed', async () => {
  const { status, headers, removed } = await client.check({ path: '/health', headers: { 'x-forwarded-user': 'root' } });
  expect([status, Object.keys(headers)]).toEqual([200, ['x-request-id']]);
  expect(removed).toEqual([
    'x-forwarded-user',
    'x-forwarded-client-id',
    'x-forwarded-scope',
    'x-forwarded-preferred-username',
  ]);
});

test('the session cookie of the pages is removed from the cookies', async () => {
  const check = (cookie: string | string[]) => client.check({ path: '/health', headers: { cookie }, raw: true });
  expect((await check('a=1; __Host-gatehouse=secret; b=2')).headers['cookie']).toBe('a=1; b=2');
  expect((await check(['a=1', '__Host-gatehouse=secret'])).headers['cookie']).toBe('a=1');
  const alone = await check('__Host-gatehouse=secret');
  expect([alone.headers['cookie'], alone.removed.includes('cookie')]).toEqual([undefined, true]);
  const others = await check('a=1');
  expect([others.headers['cookie'], others.removed.includes('cookie')]).toEqual([undefined, false]);
});

test('a route with forwardAuthorization keeps the token', () =>
  withSettings(
    setUp.gateway,
    (settings) => ({
      ...settings,
      routes: [{ path: '/raw/**', requires: 'files:read', forwardAuthorization: true }, ...(settings.routes ?? [])],
    }),
    async () => {
      const { status, removed } = await client.check({ path: '/raw/a', headers: { ...authorization(), dpop: 'x' } });
      expect([status, removed]).toEqual([200, []]);
    },
  ));

test('a refusal is the response that HTTP clients get, with a code of google.rpc', async () => {
  const none = await client.check();
  expect(none).toMatchObject({
    code: 16,
    status: 401,
    headers: {
      'www-authenticate': expect.stringContaining('Bearer realm="gatehouse"'),
      'content-type': 'application/json; charset=utf-8',
      'cache-control': 'no-store',
    },
  });
  expect(none.json['error']).toBe('unauthorized');
  expect(none.json['request_id']).toBe(none.headers['x-request-id']);
  const scope = await client.check({ path: '/reports/a', headers: authorization() });
  expect(scope).toMatchObject({ code: 7, status: 403 });
  expect(scope.json['error']).toBe('insufficient_scope');
});

test('dynamic metadata has what the access log of Envoy and its RBAC need', async () => {
  expect((await client.check({ headers: authorization() })).metadata).toEqual({
    identity: ALICE,
    client_id: 'report-runner',
    scope: 'files:read',
    grant_id: expect.stringMatching(/^\S{8,}$/),
    rule: expect.stringContaining('/files/**'),
    decision: 'allowed',
  });
  expect((await client.check({ path: '/reports/a', headers: authorization() })).metadata).toMatchObject({
    identity: ALICE,
    decision: 'refused',
    reason: 'insufficient_scope: reports:write',
  });
});

test('the access log has the checked request, its id, its client and its status', async () => {
  const id = '6e1f3b0e-8d0a-4a4e-9d1c-000000000001';
  await client.check({ path: '/reports/a?secret=1', headers: { ...authorization(), 'x-request-id': id } });
  const line = await until('the check is logged', () =>
    setUp.gateway.log.find((entry) => entry.event === 'request' && entry['request_id'] === id),
  );
  expect(line).toMatchObject({
    from: '192.0.2.7',
    method: 'POST',
    path: EXT_AUTHZ_PATH,
    status: 403,
    grpc_status: 0,
    decision: 'refused',
    identity: ALICE,
    original: 'GET /reports/a',
  });
  expect(JSON.stringify(setUp.gateway.log)).not.toContain('secret=1');
});

describe('the address of the client', () => {
  test.each([
    ['the source', '198.51.100.1', undefined, '198.51.100.1'],
    ['the source, not what its client has sent', '198.51.100.1', '203.0.113.9', '198.51.100.1'],
    ['the one that a trusted proxy before Envoy forwards', '127.0.0.1', '203.0.113.9, 127.0.0.1', '203.0.113.9'],
    ['that of Envoy if the source is not an IP address', '@pipe', undefined, '127.0.0.1'],
  ])('is %s', async (_, sourceAddress, forwardedFor, expected) => {
    const headers = { ...(forwardedFor !== undefined && { 'x-forwarded-for': forwardedFor }) };
    const { headers: set } = await client.check({ path: '/health', sourceAddress, headers });
    const line = await until('the check is logged', () =>
      setUp.gateway.log.find((entry) => entry['request_id'] === set['x-request-id']),
    );
    expect(line['from']).toBe(expected);
  });
});

describe('a request that Envoy describes ambiguously, or that the proxy would refuse, is denied', () => {
  test.each<[string, CheckInput]>([
    ['another :path', { headers: { ':path': '/health' } }],
    ['another :method', { headers: { ':method': 'OPTIONS' } }],
    ['another :authority', { headers: { ':authority': 'other.test' } }],
    ['an unknown pseudo-header field', { headers: { ':protocol': 'websocket' } }],
    ['another Host', { headers: { host: 'other.test' } }],
    ['a separate query', { more: [[7, 'a=b']] }],
    ['a separate fragment', { more: [[8, 'b']] }],
    ['two paths', { more: [[4, '/health']] }],
    [
      'two lists of header fields',
      {
        more: [
          [
            13,
            [
              [
                1,
                [
                  [1, 'a'],
                  [3, 'b'],
                ],
              ],
            ],
          ],
        ],
      },
    ],
    [
      'a header field twice in the map',
      {
        more: [
          [
            3,
            [
              [1, ':path'],
              [2, '/files/a'],
            ],
          ],
        ],
      },
    ],
    ['a line break in a header field', { headers: { 'x-a': 'b\r\nx-c: d' } }],
    ['a name with a space', { headers: { 'x a': 'b' } }],
    ['a name in upper case', { headers: { Authorization: 'Bearer x' } }],
    ['no host', { host: '' }],
    ['a host with a path', { host: 'api.example.test/x' }],
    ['an absolute URL', { path: 'https://localhost:8443/health' }],
    ['an asterisk', { method: 'OPTIONS', path: '*' }],
    ['no path', { path: '' }],
    ['a fragment', { path: '/files/a#b' }],
    ['a path of 9 KiB', { path: `/files/${'a'.repeat(9_216)}` }],
    ['CONNECT', { method: 'CONNECT' }],
    ['TRACE', { method: 'TRACE' }],
    ['a method in lower case', { method: 'get' }],
    ['two lengths', { headers: { 'content-length': ['0', '1'] }, raw: true }],
    ['two kinds of framing', { headers: { 'content-length': '0', 'transfer-encoding': 'chunked' } }],
    ['101 header fields', { headers: Object.fromEntries(Array.from({ length: 101 }, (__, at) => [`x-${at}`, 'a'])) }],
    ['two Authorization fields', { headers: { authorization: ['Bearer a', 'Bearer b'] } }],
    ['two Authorization fields, raw', { headers: { authorization: ['Bearer a', 'Bearer b'] }, raw: true }],
    ['the script of a service worker', { headers: { 'service-worker': 'script' } }],
    ['the path of the check itself', { path: EXT_AUTHZ_PATH }],
  ])('%s', async (_, input) => {
    const headers = { ...authorization(), ...input.headers };
    const reply = await client.check({ ...input, headers });
    expect([reply.code, reply.status], reply.text).toEqual([7, 403]);
    expect(reply.headers['x-forwarded-user']).toBeUndefined();
  });
});

test('raw header fields are read like merged ones', async () => {
  const { status, headers } = await client.check({ headers: { ...authorization(), 'x-a': ['\xff', 'b'] }, raw: true });
  expect([status, headers['x-forwarded-user']]).toEqual([200, ALICE]);
});

describe('a token bound to a certificate', () => {
  let bound: string;
  beforeAll(async () => {
    bound = (await setUp.gateway.grant({ clientId: 'bound-app' })).access_token;
  });
  const pem = (user: 'alice' | 'bob'): string => encodeURIComponent(setUp.gateway.users[user].pem);
  const check = (sourceCertificate?: string, headers: Readonly<Record<string, string>> = {}) =>
    client.check({
      headers: { ...authorization(bound), ...headers },
      ...(sourceCertificate !== undefined && { sourceCertificate }),
    });

  test('works with the certificate of the source, from listed peers only', async () => {
    expect((await check(pem('alice'))).status).toBe(401);
    await withSettings(setUp.gateway, withForwardedCertificates('x-forwarded-client-cert'), async () => {
      expect((await check(pem('alice'))).status).toBe(200);
      expect((await check(pem('bob'))).status).toBe(401);
      expect((await check('nonsense')).status).toBe(401);
      expect((await check()).status).toBe(401);
    });
  });

  const header = (name: string, user: 'alice' | 'bob'): string =>
    new Map(forwardedCertificateHeaders(setUp.gateway.users[user].der)).get(name) ?? '';

  test('works with x-forwarded-client-cert, which must not contradict the source', () =>
    withSettings(setUp.gateway, withForwardedCertificates('x-forwarded-client-cert'), async () => {
      const send = (source: string | undefined, value: string, name = 'x-forwarded-client-cert') =>
        check(source, { [name]: value }).then(({ status }) => status);
      const [ofAlice, ofBob] = [header(XFCC, 'alice'), header(XFCC, 'bob')];
      expect(await send(undefined, ofAlice)).toBe(200);
      expect(await send(pem('alice'), ofAlice)).toBe(200);
      expect(await send(pem('alice'), '')).toBe(200);
      expect(await send(undefined, ofBob)).toBe(401);
      expect(await send(pem('bob'), ofAlice)).toBe(403);
      expect(await send(pem('alice'), ofBob)).toBe(403);
      expect(await send('nonsense', ofAlice)).toBe(403);
      expect(await send(pem('alice'), ofAlice, 'x_forwarded_client_cert')).toBe(403);
    }));

  test('does not work with a header that Envoy forwards from its client', async () => {
    for (const [name, value] of forwardedCertificateHeaders(setUp.gateway.users.alice.der)) {
      const forwardedHeader = name.toLowerCase() as 'client-cert';
      if (name === XFCC) continue;
      await withSettings(setUp.gateway, withForwardedCertificates(forwardedHeader), async () => {
        expect([name, (await check(undefined, { [forwardedHeader]: value })).status]).toEqual([name, 401]);
        expect([name, (await check(pem('bob'), { [forwardedHeader]: value })).status]).toEqual([name, 401]);
        expect([name, (await check(pem('alice'), { [forwardedHeader]: value })).status]).toEqual([name, 200]);
      });
    }
  });
});

test('a limit of a route is 429, and its state is added to the responses of the API', () =>
  withSettings(
    setUp.gateway,
    (settings) => ({ ...settings, limits: { ...settings.limits, routes: '1/h', rateLimitHeaders: true } }),
    async () => {
      const input = { headers: authorization() };
      expect((await client.check(input)).responseHeaders).toEqual({
        'ratelimit-policy': expect.any(String),
        ratelimit: expect.stringContaining('r=0'),
      });
      const exceeded = await client.check(input);
      expect([exceeded.code, exceeded.status]).toEqual([7, 429]);
      expect(exceeded.headers).toMatchObject({ 'retry-after': expect.stringMatching(/^\d+$/) });
    },
  ));

test('a route that only reports allows the request, and says what it would refuse', () =>
  withSettings(
    setUp.gateway,
    (settings) => ({
      ...settings,
      routes: [{ path: '/try/**', requires: 'reports:write', reportOnly: true }, ...(settings.routes ?? [])],
    }),
    async () => {
      const reply = await client.check({ path: '/try/a', headers: authorization() });
      expect(reply).toMatchObject({
        status: 200,
        metadata: { decision: 'would_refuse', reason: 'insufficient_scope: reports:write' },
      });
    },
  ));

test('while gatehouse fails, the request is denied with 503', async () => {
  const failing = vi.spyOn(setUp.gateway.server.store.revocations, 'isRevoked').mockImplementation(() => {
    throw new Error('unexpected');
  });
  try {
    const { access_token: unseen } = await setUp.gateway.grant({ scope: 'files:read' });
    const reply = await client.check({ headers: authorization(unseen) });
    expect([reply.code, reply.status, reply.headers['retry-after']]).toEqual([7, 503, expect.any(String)]);
  } finally {
    failing.mockRestore();
  }
});

test('a peer that is not listed gets the same denial for every request, and the log names the setting', () =>
  withSettings(
    setUp.gateway,
    (settings) => ({ ...settings, trustedProxies: ['192.0.2.0/24'] }),
    async () => {
      const before = setUp.gateway.log.length;
      for (const message of [encodeCheckRequest({ path: '/health' }), Buffer.from('nonsense')]) {
        const reply = await client.send(message);
        expect([reply.code, reply.status, reply.json['error']]).toEqual([7, 403, 'access_denied']);
      }
      expect(setUp.gateway.log.slice(before)).toContainEqual(
        expect.objectContaining({ event: 'forward_auth_peer_not_trusted', setting: 'trustedProxies' }),
      );
    },
  ));

test('a client of another implementation of gRPC can call it', async () => {
  const { port, ca } = setUp.gateway;
  const caller = new Client(`127.0.0.1:${port}`, credentials.createSsl(Buffer.from(ca.pem)), {
    'grpc.ssl_target_name_override': 'localhost',
  });
  onTestFinished(() => caller.close());
  const call = (message: Buffer) =>
    new Promise<Buffer | undefined>((resolve, reject) => {
      const asBytes = (value: Buffer): Buffer => value;
      caller.makeUnaryRequest(EXT_AUTHZ_PATH, asBytes, asBytes, message, (error, reply) =>
        error === null ? resolve(reply) : reject(error),
      );
    });
  const allowed = await call(encodeCheckRequest({ headers: authorization() }));
  expect(decodeCheckResponse(allowed ?? Buffer.alloc(0)).headers['x-forwarded-user']).toBe(ALICE);
  const denied = await call(encodeCheckRequest({}));
  expect(decodeCheckResponse(denied ?? Buffer.alloc(0)).status).toBe(401);
});

describe('what is not a call', () => {
  const message = (): Buffer => encodeCheckRequest({ path: '/health' });

  test.each([
    ['no message', () => Buffer.alloc(0), '12'],
    ['a compressed message', () => frameMessage(message(), 1), '12'],
    ['an invalid flag', () => frameMessage(message(), 2), '12'],
    ['two messages', () => Buffer.concat([frameMessage(message()), frameMessage(message())]), '12'],
    ['a truncated message', () => frameMessage(message()).subarray(0, -1), '13'],
    ['a truncated prefix', () => Buffer.alloc(4), '13'],
  ])('%s gets the status of gRPC, without a message', async (_, body, expected) => {
    const { status, headers, body: received } = await client.call(body());
    expect([status, headers['grpc-status'], received.length]).toEqual([200, expected, 0]);
    expect(headers['content-type']).toBe('application/grpc');
  });

  test.each([
    ['another method', { ':method': 'PUT' }],
    ['another content type', { 'content-type': 'application/json' }],
    ['gRPC-Web', { 'content-type': 'application/grpc-web+proto' }],
    ['another encoding', { 'content-type': 'application/grpc+json' }],
  ])('%s is 415', async (_, fields) => {
    expect((await client.call(frameMessage(message()), fields)).status).toBe(415);
  });

  test('HTTP/1.1 is 415', async () => {
    const reply = await setUp.gateway.request({
      method: 'POST',
      path: EXT_AUTHZ_PATH,
      headers: { 'content-type': 'application/grpc' },
      body: frameMessage(message()).toString('latin1'),
    });
    expect(reply.status).toBe(415);
  });

  test.each([
    ['bytes that are no protobuf', Buffer.from('nonsense')],
    ['a group', Buffer.from([0x0b, 0x0c])],
    ['an empty message', Buffer.alloc(0)],
    [
      'a header field that is not UTF-8',
      encodeCheckRequest({
        more: [
          [
            3,
            [
              [1, 'x-a'],
              [2, Buffer.from([0xff])],
            ],
          ],
        ],
      }),
    ],
    ['a fragment that is not UTF-8', encodeCheckRequest({ more: [[8, Buffer.from([0xff])]] })],
  ])('%s: the request is denied', async (_, bytes) => {
    expect((await client.send(bytes)).code).toBe(7);
  });

  test('a message that is too large is denied, and the connection serves the next one', async () => {
    const { code, status, json } = await client.check({ more: [[12, Buffer.alloc(100_000)]] });
    expect([code, status, json['error']]).toEqual([7, 403, 'invalid_request']);
    expect((await client.check({ path: '/health' })).status).toBe(200);
  });
});
