import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { bearer, type ProxyHarness, RULES, rule, scope, startProxyHarness } from '../../support/proxy-harness.ts';
import { type RawResponse, rawRequest } from '../../support/raw-client.ts';
import { headerValues, type RecordingUpstream, startRecordingUpstream } from '../../support/recording-upstream.ts';

let upstream: RecordingUpstream;
let proxy: ProxyHarness;
const IDENTITY = bearer().identity;

beforeAll(async () => {
  upstream = await startRecordingUpstream();
  proxy = await startProxyHarness({
    upstream: upstream.url,
    rules: [...RULES, rule('/keeps/**', 'any-token', { forwardAuthorization: true })],
    tokens: {
      A: bearer(),
      'spaces-at-the-ends': bearer({ identity: ' corp:alice  b  ' }),
      'odd-name': bearer({ identity: 'wl:a\r\nX-Evil: 1ü%', scope: scope('files:read,write;admin:manage') }),
    },
    isTrustedPeer: (peer) => peer === '10.0.0.1',
  });
});
afterAll(async () => {
  await proxy.close();
  await upstream.close();
});
beforeEach(() => upstream.reset());

const send = (path: string, headers: readonly string[], token: string | undefined = 'A'): Promise<RawResponse> =>
  rawRequest(
    proxy.port,
    [
      `GET ${path} HTTP/1.1`,
      `Host: 127.0.0.1:${proxy.port}`,
      ...(token === undefined ? [] : [`Authorization: Bearer ${token}`]),
      ...headers,
      '\r\n',
    ].join('\r\n'),
  );

const IDENTITY_NAMES = ['x-forwarded-user', 'x-forwarded-client-id', 'x-forwarded-scope'];
/** Fields whose name could be read as `name` by a server that folds separators. */
const valuesLike = (name: string): string[] =>
  (upstream.requests[0]?.headers ?? [])
    .filter(([given]) => given.replace(/[_.]/g, '-') === name)
    .map(([, value]) => value);

const spoofedHeaders = (value: string): string[] =>
  IDENTITY_NAMES.flatMap((name) => [
    `${name}: ${value}`,
    `${name.toUpperCase()}: ${value}`,
    `${name.replaceAll('-', '_')}: ${value}`,
    `${name.replace('-', '_')}: ${value}`,
    `${name.replaceAll('-', '.')}: ${value}`,
  ]);

test('spaces at the ends of an identity are encoded: a recipient would remove them', async () => {
  await send('/files/1', [], 'spaces-at-the-ends');
  expect(headerValues(upstream.requests[0], 'x-forwarded-user')).toEqual(['%20corp:alice  b%20%20']);
});

describe('only the gateway sets the identity headers', () => {
  test('I01 a spoofed identity header is replaced by the gateway’s', async () => {
    expect((await send('/files/1', ['X-Forwarded-User: root', 'X-Gatehouse-Identity: root'])).status).toBe(200);
    expect(valuesLike('x-forwarded-user')).toEqual([IDENTITY]);
    expect(valuesLike('x-gatehouse-identity')).toEqual([]);
    expect(valuesLike('x-forwarded-client-id')).toEqual(['report-runner']);
    expect(valuesLike('x-forwarded-scope')).toEqual(['files:read']);
  });

  test('I02 no other spelling of an identity header is forwarded', async () => {
    await send('/files/1', [
      'x_forwarded_user: root',
      'X_Forwarded-User: root',
      'x.forwarded.user: root',
      'x_gatehouse.identity: root',
    ]);
    expect(valuesLike('x-forwarded-user')).toEqual([IDENTITY]);
    expect(valuesLike('x-gatehouse-identity')).toEqual([]);
    expect(upstream.bytes()).not.toContain('root');
  });

  test('I03 an identity header sent three times is forwarded once, with the gateway’s value', async () => {
    await send('/files/1', ['X-Forwarded-User: a', 'X-Forwarded-User: b', 'X-Forwarded-User: c']);
    expect(valuesLike('x-forwarded-user')).toEqual([IDENTITY]);
  });

  test('a spoofed identity header never reaches the upstream, on public and on protected routes', async () => {
    expect((await send('/public/a', spoofedHeaders('evil'), undefined)).status).toBe(200);
    for (const name of IDENTITY_NAMES) expect([name, valuesLike(name)]).toEqual([name, []]);
    expect(upstream.bytes()).not.toContain('evil');
    upstream.reset();
    expect((await send('/public/a', spoofedHeaders('evil'))).status).toBe(200);
    for (const name of IDENTITY_NAMES) expect([name, valuesLike(name)]).toEqual([name, []]);
    upstream.reset();
    expect((await send('/files/a', spoofedHeaders('evil'))).status).toBe(200);
    for (const name of IDENTITY_NAMES) expect([name, valuesLike(name).length]).toEqual([name, 1]);
    expect(upstream.bytes()).not.toContain('evil');
  });

  test('I04 Connection cannot remove the gateway’s headers', async () => {
    const list = 'Connection: close, X-Forwarded-User, Authorization, X-Forwarded-For, X-Mine';
    expect((await send('/files/1', [list, 'X-Mine: 1', 'X-Forwarded-For: 6.6.6.6', 'X-Kept: 1'])).status).toBe(200);
    const [seen] = upstream.requests;
    expect(headerValues(seen, 'x-forwarded-user')).toEqual([IDENTITY]);
    expect(headerValues(seen, 'x-forwarded-for')).toEqual(['127.0.0.1']);
    expect(headerValues(seen, 'x-mine')).toEqual([]);
    expect(headerValues(seen, 'x-kept')).toEqual(['1']);
  });

  test('I05 Connection cannot name host or framing', async () => {
    for (const name of ['transfer-encoding', 'content-length', 'Host', 'close, HOST'])
      expect([name, (await send('/files/1', [`Connection: ${name}`])).status]).toEqual([name, 400]);
    expect(upstream.bytes()).toBe('');
  });

  test('I06 forwarded headers from an untrusted peer are replaced with the values of the connection', async () => {
    await send('/files/1', [
      'X-Forwarded-For: 6.6.6.6',
      'Forwarded: for=6.6.6.6',
      'X-Real-IP: 6.6.6.6',
      'X-Forwarded-Host: evil.test',
      'X-Forwarded-Proto: gopher',
      'X-Forwarded-Port: 666',
      'X-Request-Id: evil',
    ]);
    const [seen] = upstream.requests;
    expect(headerValues(seen, 'x-forwarded-for')).toEqual(['127.0.0.1']);
    expect(headerValues(seen, 'x-forwarded-host')).toEqual([`127.0.0.1:${proxy.port}`]);
    expect(headerValues(seen, 'x-forwarded-proto')).toEqual(['http']);
    expect(headerValues(seen, 'x-request-id')).toEqual([expect.stringMatching(/^[\w-]{8,}$/)]);
    for (const name of ['forwarded', 'x-real-ip', 'x-forwarded-port'])
      expect([name, headerValues(seen, name)]).toEqual([name, []]);
    expect(upstream.bytes()).not.toMatch(/6\.6\.6\.6|evil|gopher|: 666\b/);
  });

  test('I07 forwarded headers from a listed proxy are kept, and its own address is added', async () => {
    const trustingProxy = await startProxyHarness({
      upstream: upstream.url,
      isTrustedPeer: (peer) => peer === '127.0.0.1',
    });
    try {
      await rawRequest(
        trustingProxy.port,
        `GET /public/a HTTP/1.1\r\nHost: inner\r\nX-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: 9.9.9.9\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: api.test\r\nX-Forwarded-User: root\r\n\r\n`,
      );
    } finally {
      await trustingProxy.close();
    }
    const [seen] = upstream.requests;
    expect(headerValues(seen, 'x-forwarded-for')).toEqual(['6.6.6.6, 9.9.9.9, 127.0.0.1']);
    expect(headerValues(seen, 'x-forwarded-proto')).toEqual(['https']);
    expect(headerValues(seen, 'x-forwarded-host')).toEqual(['api.test']);
    expect(headerValues(seen, 'x-forwarded-user')).toEqual([]);
  });

  test('I08 without listed proxies no forwarded header is trusted', async () => {
    await send('/public/a', ['X-Forwarded-For: 6.6.6.6', 'X-Forwarded-Proto: https']);
    expect(headerValues(upstream.requests[0], 'x-forwarded-for')).toEqual(['127.0.0.1']);
    expect(headerValues(upstream.requests[0], 'x-forwarded-proto')).toEqual(['http']);
  });

  test('client certificate headers are not forwarded', async () => {
    const names = [
      'Client-Cert',
      'X-Forwarded-Client-Cert',
      'X-SSL-Client-Verify',
      'ssl-client-cert',
      'X-ARR-ClientCert',
      'X_SSL_Client_Cert',
    ];
    await send(
      '/public/a',
      names.map((name) => `${name}: forged`),
    );
    expect(upstream.requests).toHaveLength(1);
    expect(upstream.bytes()).not.toContain('forged');
  });
});

describe('I12 one token, sent by one method', () => {
  const sendFields = (lines: readonly string[], target = '/files/1'): Promise<RawResponse> =>
    rawRequest(proxy.port, [`GET ${target} HTTP/1.1`, 'Host: a.test', ...lines, '\r\n'].join('\r\n'));

  test('I12 two Authorization headers are refused, on public routes too', async () => {
    for (const path of ['/files/1', '/public/a', '/nowhere'])
      expect((await sendFields(['Authorization: Bearer A', 'authorization: Bearer A'], path)).status).toBe(400);
  });
  test('I12 two tokens in one header are refused, on public routes too', async () => {
    for (const path of ['/files/1', '/public/a'])
      for (const value of ['Bearer a, Bearer b', 'Basic x, Bearer A', 'Bearer A,B'])
        expect([value, (await sendFields([`Authorization: ${value}`], path)).status]).toEqual([value, 400]);
  });
  test('I12 a token in the query is refused in every encoding of its name, on public routes too', async () => {
    for (const query of ['access_token=A', 'a=1&access%5Ftoken=A', 'a=1;access_token=A', 'access_token'])
      for (const path of ['/files/1', '/public/a'])
        expect([query, (await sendFields(['Authorization: Bearer A'], `${path}?${query}`)).status]).toEqual([
          query,
          400,
        ]);
    expect((await sendFields(['Authorization: Bearer A'], '/files/1?no_access_token=A')).status).toBe(200);
  });
  test('I12 the scheme is accepted in any case', async () => {
    expect((await sendFields(['Authorization: bearer A'])).status).toBe(200);
    expect((await sendFields(['Authorization: BEARER A'])).status).toBe(200);
  });
  test('I12 a malformed bearer header is an invalid token', async () => {
    for (const value of ['Bearer  A', 'Bearer', 'Bearer\tA', 'Bearer A B', 'Bearer "A"']) {
      const { status, head } = await sendFields([`Authorization: ${value}`]);
      expect([value, status]).toEqual([value, 401]);
      expect(head).toContain('error="invalid_token"');
    }
  });
  test('I12 another scheme is not a bearer token and gets the plain challenge', async () => {
    const { status, head, body } = await sendFields(['Authorization: Basic x']);
    expect(status).toBe(401);
    expect(head).toMatch(/\r\nwww-authenticate: Bearer realm="gatehouse"\r\n/i);
    expect(head).toMatch(/\r\ncache-control: no-store/i);
    expect(JSON.parse(body)).toEqual({
      error: 'unauthorized',
      error_description: 'A bearer token is required.',
      request_id: expect.stringMatching(/^[\w-]{8,}$/),
    });
  });
  test('I12 a token in a form body is ignored', async () => {
    const body = 'access_token=A';
    const message = `POST /files/1 HTTP/1.1\r\nHost: a.test\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
    expect((await rawRequest(proxy.port, message)).status).toBe(401);
  });
});

describe('other headers', () => {
  test('I13 an upstream cannot set gatehouse’s headers or cookie', async () => {
    upstream.respondWith((socket) =>
      socket.write(
        'HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Gatehouse-Thing: 1\r\nX_Forwarded_User: root\r\nX-Forwarded-Scope: all\r\n' +
          'Set-Cookie: __Host-gatehouse=stolen; Path=/\r\nSet-Cookie: theirs=1\r\nSet-Cookie: more=2\r\nServer-Timing: t;desc="eyJhbGciOiJub25lIn0.eyJhIjoxfQ."\r\n' +
          'Connection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=100\r\nX-Kept: yes\r\n\r\nok',
      ),
    );
    const { head, status } = await send('/public/a', []);
    expect(status).toBe(200);
    expect(head).not.toMatch(/gatehouse|root|x-forwarded|eyJ|x-hop|timeout=100/i);
    expect(head.match(/set-cookie: [^\r]*/gi)).toEqual(['Set-Cookie: theirs=1', 'Set-Cookie: more=2']);
    expect(head).toMatch(/x-kept: yes/i);
    expect(head).toMatch(/x-request-id: [\w-]{8,}\r/i);
  });

  test('I14 the token is not forwarded unless a route enables it; the session cookie never is', async () => {
    const cookie = 'Cookie: a=1; __Host-gatehouse=secret; b=2';
    await send('/files/1', [cookie]);
    expect(headerValues(upstream.requests[0], 'authorization')).toEqual([]);
    expect(headerValues(upstream.requests[0], 'cookie')).toEqual(['a=1; b=2']);
    upstream.reset();
    await send('/keeps/1', ['Cookie: __Host-gatehouse=secret']);
    expect(headerValues(upstream.requests[0], 'authorization')).toEqual(['Bearer A']);
    expect(headerValues(upstream.requests[0], 'cookie')).toEqual([]);
  });

  test('I15 headers named like JavaScript properties have no special meaning', async () => {
    expect(
      (await send('/files/1', ['__proto__: x', 'constructor: y', 'toString: z', `${'n'.repeat(8_000)}: 1`])).status,
    ).toBe(200);
    expect(headerValues(upstream.requests[0], 'constructor')).toEqual(['y']);
    expect(headerValues(upstream.requests[0], '__proto__')).toEqual([]);
    expect(valuesLike('x-forwarded-user')).toEqual([IDENTITY]);
    const many = Array.from({ length: 2_001 }, (_, index) => `a${index}: 1`);
    expect([400, 431]).toContain((await send('/files/1', many)).status);
  });

  test('I16 an identity with a line break or non-ASCII letters is forwarded percent-encoded', async () => {
    expect((await send('/files/1', [], 'odd-name')).status).toBe(200);
    expect(valuesLike('x-forwarded-user')).toEqual(['wl:a%0D%0AX-Evil: 1%C3%BC%25']);
    expect(valuesLike('x-evil')).toEqual([]);
  });

  test('the forwarded scope is the token’s, limited to the integration’s current scope', async () => {
    await send('/files/1', [], 'odd-name');
    expect(valuesLike('x-forwarded-scope')).toEqual(['files:read,write']);
    expect((await send('/admin/1', [], 'odd-name')).status).toBe(403);
  });

  test('a well-formed traceparent is kept, a malformed one is replaced', async () => {
    const traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
    await send('/files/1', [`traceparent: ${traceparent}`, 'tracestate: a=b']);
    await send('/files/1', ['traceparent: evil', 'tracestate: a=b']);
    const [keptTrace, newTrace] = upstream.requests;
    expect([headerValues(keptTrace, 'traceparent'), headerValues(keptTrace, 'tracestate')]).toEqual([
      [traceparent],
      ['a=b'],
    ]);
    expect(headerValues(newTrace, 'traceparent')).toEqual([expect.stringMatching(/^00-[0-9a-f]{32}-[0-9a-f]{16}-00$/)]);
    expect(headerValues(newTrace, 'tracestate')).toEqual([]);
  });
});
