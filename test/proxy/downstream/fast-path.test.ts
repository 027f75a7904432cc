import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { FallbackReason } from '../../../src/proxy/downstream/request-parser.ts';
import { NOW, type ProxyHarness, rule, startProxyHarness } from '../../support/proxy-harness.ts';
import { connectRaw, isCompleteResponse, parseRawResponse, rawRequest } from '../../support/raw-client.ts';
import { type RecordingUpstream, startRecordingUpstream } from '../../support/recording-upstream.ts';
import { until } from '../../support/serve-process.ts';
import { startTlsProxy, type TlsProxy } from '../upstream/tls-proxy.ts';

/** Requests the fast path handles, requests that fall back to the full path, and that no byte is lost or read twice. */
let upstream: RecordingUpstream;
let front: TlsProxy;
let proxy: ProxyHarness;
/** The same proxy without the fast path. */
let full: ProxyHarness;
const RULES = [
  rule('/public/**', 'public'),
  rule('/files/**', 'files:read'),
  rule('/admin/**', 'admin:manage'),
  rule('/pages/**', 'files:read', {
    cors: { origins: 'any', headers: [], exposeHeaders: [], credentials: false, maxAge: 1 },
  }),
  rule('/tried/**', 'admin:manage', { reportOnly: true }),
  rule('/secure/**', 'files:read', { upstream: 'secure' }),
];

beforeAll(async () => {
  upstream = await startRecordingUpstream();
  front = await startTlsProxy(upstream.port);
  const secure = {
    targets: [front.url],
    ca: front.ca,
    timeouts: { connect: 5, headers: 5, idle: 5 },
    connections: 1,
  };
  const options = { upstream: upstream.url, rules: RULES, extraUpstreams: { secure } };
  proxy = await startProxyHarness({ ...options, proxyPath: 'fast' });
  full = await startProxyHarness({ ...options, proxyPath: 'full' });
});
afterAll(async () => {
  await proxy.close();
  await full.close();
  await front.close();
  await upstream.close();
});
beforeEach(() => upstream.reset());

const AUTH = 'Host: gate.test\r\nAuthorization: Bearer A\r\n';
const get = (path = '/files/1', more = ''): string => `GET ${path} HTTP/1.1\r\n${AUTH}${more}\r\n`;
const post = (body: string, more = ''): string =>
  `POST /files/1 HTTP/1.1\r\n${AUTH}Content-Length: ${body.length}\r\n${more}\r\n${body}`;
const chunked = (body: string, more = ''): string =>
  `POST /files/1 HTTP/1.1\r\n${AUTH}Transfer-Encoding: chunked\r\n${more}\r\n${body}`;
const counts = () => {
  if (proxy.fastPath === undefined) throw new Error('the proxy has no fast path');
  return proxy.fastPath.counts;
};
const fallbackCounts = (): Record<FallbackReason, number> => ({ ...counts().fallbacks });
/** Both ends are in this process: written bytes are read within two event-loop iterations. */
const waitForDelivery = async (): Promise<void> => {
  await new Promise(setImmediate);
  await new Promise(setImmediate);
};

describe('requests the fast path handles', () => {
  test.each([
    ['GET', get()],
    ['a path with escapes and a query', get('/files/a%20b/%7Ec?x=1&y=%2F')],
    ['HEAD', get().replace('GET', 'HEAD')],
    ['DELETE', get().replace('GET', 'DELETE')],
    ['POST', post('hello')],
    ['POST without a body', post('')],
    ['PUT', post('hello').replace('POST', 'PUT')],
    ['PATCH', post('hello').replace('POST', 'PATCH')],
    ['a chunked body', chunked('5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n')],
    ['an empty chunked body', chunked('0\r\n\r\n')],
    ['a rule with a CORS policy', get('/pages/1', 'Origin: https://app.example\r\n')],
    ['a report-only rule', get('/tried/1')],
    ['an upstream over TLS', get('/secure/1')],
    ['Connection: keep-alive', get('/files/1', 'Connection: keep-alive\r\n')],
    ['Connection: close', get('/files/1', 'Connection: Close\r\n')],
    ['no token on a public route', 'GET /public/a HTTP/1.1\r\nHost: gate.test\r\n\r\n'],
    [
      'a cookie, a trace and reserved header names',
      get(
        '/files/1',
        `Cookie: a=b; __Host-gatehouse=c\r\ntraceparent: 00-${'a'.repeat(32)}-${'b'.repeat(16)}-01\r\nX-Forwarded-User: evil\r\nX_Forwarded_User: evil\r\nX-Real-IP: 6.6.6.6\r\n`,
      ),
    ],
  ])('%s: the upstream gets the same request as on the full path', async (_, message) => {
    const before = counts().served;
    const response = await rawRequest(proxy.port, message);
    expect([response.status, counts().served - before]).toEqual([200, 1]);
    const other = await rawRequest(full.port, message);
    expect(other.status).toBe(200);
    const [fastResult, fullResult] = upstream.requests.map(
      ({ connection: _connection, headers, ...rest }) => ({
        ...rest,
        headers: headers
          .map(([name, value]) =>
            /^(?:x-request-id|traceparent)$/.test(name) && !value.startsWith('00-aaaa')
              ? name
              : `${name}: ${value.replace(/:\d+$/, '')}`,
          )
          .toSorted(),
      }),
    );
    expect(fastResult).toEqual(fullResult);
  });

  test('a rejection because of a missing token or scope keeps the connection open', async () => {
    const before = counts().served;
    const client = await connectRaw(proxy.port);
    client.send('GET /files/1 HTTP/1.1\r\nHost: a\r\n\r\n');
    client.send(get('/admin/x') + get('/nowhere') + get('/files/2'));
    const text = await client.until((all) => all.includes('GET /files/2'));
    expect(text.match(/HTTP\/1\.1 \d+/g)).toEqual([
      'HTTP/1.1 401',
      'HTTP/1.1 403',
      'HTTP/1.1 404',
      'HTTP/1.1 200',
    ]);
    expect(counts().served - before).toBe(4);
    client.destroy();
    const [fastResult, fullResult] = await Promise.all(
      [proxy, full].map(async ({ port }) => parseRawResponse(await rawText(port, get('/admin/x')))),
    );
    const normalize = (text = ''): string[] =>
      text
        .split('\r\n')
        .filter((line) => !/^(?:x-request-id|content-length|date|keep-alive):/i.test(line))
        .map((line) => line.replace(/^[^:]*/, (name) => name.toLowerCase()))
        .toSorted();
    expect(normalize(fastResult?.head)).toEqual(normalize(fullResult?.head));
  });
});

const rawText = async (port: number, message: string): Promise<string> => {
  const client = await connectRaw(port);
  client.send(message);
  const text = await client.until((all) => isCompleteResponse(all));
  client.destroy();
  return text;
};

/** Requests that fall back: the full path reads them from the first byte. */
const FALLBACKS: readonly (readonly [FallbackReason, string, string])[] = [
  ['head', 'HTTP/1.0', get().replace('1.1\r', '1.0\r')],
  ['head', 'a less common method', get().replace('GET', 'OPTIONS')],
  ['head', 'absolute-form', get('http://gate.test/files/1')],
  ['head', 'a fragment', get('/files/1#a')],
  ['head', 'two spaces in the request line', get('/files/1').replace('GET ', 'GET  ')],
  ['head', 'no space after the colon', get('/files/1', 'X-A:b\r\n')],
  ['head', 'a tab in a value', get('/files/1', 'X-A: b\tc\r\n')],
  ['head', 'a space after a value', get('/files/1', 'X-A: b \r\n')],
  ['head', 'an empty value', get('/files/1', 'X-A: \r\n')],
  ['head', 'obs-text', get('/files/1', 'X-A: \xe4\r\n')],
  ['head', 'a folded line', get('/files/1', 'X-A: b\r\n c\r\n')],
  ['head', 'a space before the colon', get('/files/1', 'X-A : b\r\n')],
  ['head', 'a control character', get('/files/1', 'X-A: b\x01\r\n')],
  ['head', 'two Hosts', get('/files/1', 'Host: gate.test\r\n')],
  ['head', 'no Host', get().replace('Host: gate.test\r\n', '')],
  ['head', 'a malformed Host', get().replace('gate.test', 'a/b@c')],
  ['head', 'two tokens', get('/files/1', 'Authorization: Bearer A\r\n')],
  ['head', 'lines that end in LF', get().replaceAll('\r\n', '\n')],
  ['head', 'no fields at all', 'GET /files/1 HTTP/1.1\r\n\r\n'],
  ['head', 'an empty line before the request', `\r\n${get()}`],
  ['size', 'a long target', get(`/files/${'a'.repeat(8_300)}`)],
  ['size', 'more than a hundred fields', get('/files/1', 'X-A: b\r\n'.repeat(101))],
  ['size', 'a body that is larger than allowed', post('x'.repeat(1_048_577))],
  ['body', 'a chunk extension', chunked('2;a=b\r\nab\r\n0\r\n\r\n')],
  ['body', 'trailers', chunked('2\r\nab\r\n0\r\nX-T: 1\r\n\r\n')],
  ['body', 'a malformed chunk', chunked('2\r\nabc\r\n0\r\n\r\n')],
  ['body', 'a chunk size with a sign', chunked('+2\r\nab\r\n0\r\n\r\n')],
  ['body', 'a long chunked body', chunked(`11170\r\n${'x'.repeat(70_000)}\r\n0\r\n\r\n`)],
  ['framing', 'another transfer coding', chunked('0\r\n\r\n').replace('chunked', 'gzip, chunked')],
  ['framing', 'two transfer codings', chunked('0\r\n\r\n', 'Transfer-Encoding: chunked\r\n')],
  ['framing', 'chunks where no body is expected', chunked('0\r\n\r\n').replace('POST', 'GET')],
  ['framing', 'both framings', post('ab', 'Transfer-Encoding: chunked\r\n')],
  ['framing', 'TE', get('/files/1', 'TE: trailers\r\n')],
  ['framing', 'Expect', post('ab', 'Expect: 100-continue\r\n')],
  ['framing', 'Upgrade', get('/files/1', 'Upgrade: h2c\r\n')],
  ['framing', 'Keep-Alive', get('/files/1', 'Keep-Alive: timeout=5\r\n')],
  ['framing', 'Proxy-Connection', get('/files/1', 'Proxy-Connection: keep-alive\r\n')],
  ['framing', 'a name that some servers read as Content-Length', get('/files/1', 'Content_Length: 5\r\n')],
  ['framing', 'a length where no body is expected', get('/files/1', 'Content-Length: 2\r\n') + 'ab'],
  ['framing', 'no length where there may be a body', get().replace('GET', 'POST')],
  ['framing', 'two lengths', post('ab', 'Content-Length: 2\r\n')],
  ['framing', 'a length with a sign', post('ab').replace(': 2', ': +2')],
  ['connection', 'Connection with a name', get('/files/1', 'Connection: X-A\r\n')],
  ['connection', 'two Connection fields', get('/files/1', 'Connection: close\r\nConnection: close\r\n')],
  ['refused', 'a dot segment', get('/files/../admin')],
  ['refused', 'a token in the query', get('/files/1?access_token=A')],
];

describe('requests that fall back to the full path', () => {
  test.each(FALLBACKS)('%s: %s', async (reason, _, message) => {
    const before = fallbackCounts();
    const toHead = message.startsWith('HEAD');
    const send = async (port: number): Promise<string> => {
      const client = await connectRaw(port);
      client.send(message);
      const text = await client.until((all) =>
        isCompleteResponse(all.replace(/^HTTP\/1\.1 100 Continue\r\n\r\n/, ''), toHead),
      );
      client.destroy();
      return text.replace(/^HTTP\/1\.1 100 Continue\r\n\r\n/, '');
    };
    const fastResult = parseRawResponse(await send(proxy.port));
    expect(fallbackCounts()).toEqual({ ...before, [reason]: before[reason] + 1 });
    const fullResult = parseRawResponse(await send(full.port));
    expect(fastResult.status).toBe(fullResult.status);
    expect(upstream.requests.length % 2).toBe(0);
  });

  test('refused: a body that has not arrived yet', async () => {
    const before = counts().fallbacks.refused;
    const client = await connectRaw(proxy.port);
    client.send(`POST /admin/x HTTP/1.1\r\n${AUTH}Content-Length: 5\r\n\r\n`);
    await until('the request falls back', () => counts().fallbacks.refused === before + 1);
    client.send('hello');
    expect(parseRawResponse(await client.until((all) => isCompleteResponse(all))).status).toBe(403);
    client.send(get());
    expect((await client.until((all) => all.includes('GET /files/1'))).match(/HTTP\/1\.1 \d+/g)).toEqual([
      'HTTP/1.1 403',
      'HTTP/1.1 200',
    ]);
    client.destroy();
  });

  test('a connection that fell back stays on the full path, and its responses keep their order', async () => {
    const before = counts().served;
    const client = await connectRaw(proxy.port);
    client.send(get('/files/1') + get('/files/2', 'TE: trailers\r\n') + get('/files/3') + get('/files/4'));
    const text = await client.until((all) => all.includes('GET /files/4'));
    expect(text.match(/GET \/files\/\d/g)).toEqual([1, 2, 3, 4].map((at) => `GET /files/${at}`));
    expect(upstream.requests.map(({ target }) => target).toSorted()).toEqual(
      [1, 2, 3, 4].map((at) => `/files/${at}`),
    );
    expect(counts().served - before).toBe(1);
    client.destroy();
  });
});

describe('bytes that arrive in any segmentation', () => {
  const MESSAGES = `${get('/files/1')}${post('hello')}${get('/files/2', 'TE: trailers\r\n')}${get('/files/3')}`;
  const RESPONSES = ['GET /files/1', 'POST /files/1', 'GET /files/2', 'GET /files/3'];

  test('split into two reads at every position: each request gets one response, in order', async () => {
    const sendSplit = async (at: number): Promise<void> => {
      const client = await connectRaw(proxy.port);
      client.socket.setNoDelay(true);
      client.send(MESSAGES.slice(0, at));
      await waitForDelivery();
      client.send(MESSAGES.slice(at));
      const text = await client.until((all) => all.includes('GET /files/3'));
      expect([at, text.match(/(?:GET|POST) \/files\/\d/g)]).toEqual([at, RESPONSES]);
      client.destroy();
    };
    for (let at = 1; at < MESSAGES.length; at += 24)
      await Promise.all(
        Array.from({ length: Math.min(24, MESSAGES.length - at) }, (_, index) => sendSplit(at + index)),
      );
    const bodies = upstream.requests.filter(({ method }) => method === 'POST').map(({ body }) => body);
    expect(new Set(bodies)).toEqual(new Set(['hello']));
    expect(upstream.requests).toHaveLength((MESSAGES.length - 1) * 4);
  });

  test('sent byte by byte: each request gets one response, in order', async () => {
    const client = await connectRaw(proxy.port);
    client.socket.setNoDelay(true);
    for (const byte of MESSAGES) {
      client.send(byte);
      await new Promise(setImmediate);
    }
    const text = await client.until((all) => all.includes('GET /files/3'));
    expect(text.match(/(?:GET|POST) \/files\/\d/g)).toEqual(RESPONSES);
    client.destroy();
  });

  test('an incomplete head falls back to the full path, which waits for the rest until the timeout', async () => {
    const before = counts().fallbacks.head;
    const client = await connectRaw(proxy.port);
    client.send(get().slice(0, 40));
    await until('the request falls back', () => counts().fallbacks.head === before + 1);
    client.send(get().slice(40));
    expect(parseRawResponse(await client.until((all) => isCompleteResponse(all))).status).toBe(200);
    client.destroy();
  });

  test('aborted at every position: no incomplete request is forwarded as complete', async () => {
    const message = post('hello');
    const before = counts().served;
    for (let at = 0; at < message.length; at += 1) {
      const client = await connectRaw(proxy.port);
      client.send(message.slice(0, at));
      await waitForDelivery();
      client.destroy();
    }
    await until(
      'all aborted requests have ended',
      () =>
        upstream.connectionStreams().every(({ unfinished }) => unfinished === '') ||
        upstream.openConnections() <= 2,
    );
    expect(upstream.requests).toEqual([]);
    expect((await rawRequest(proxy.port, get())).status).toBe(200);
    // Requests with an incomplete body had already started.
    expect(counts().served - before).toBeLessThanOrEqual(6);
  });
});

test('while a new token is verified, later requests wait and keep their order', async () => {
  const received = Promise.withResolvers<void>();
  const verified = Promise.withResolvers<void>();
  const slowProxy = await startProxyHarness({
    upstream: upstream.url,
    proxyPath: 'fast',
    readAccessToken: async (token) => {
      received.resolve();
      await verified.promise;
      return token === 'A'
        ? {
            grantId: 'g',
            generation: 1,
            clientId: 'report-runner',
            identity: 'i',
            scope: new Map([['files', new Set(['read'])]]),
            issuedAt: NOW - 1,
            expires: NOW + 60,
            keyId: 'k',
          }
        : undefined;
    },
  });
  try {
    const client = await connectRaw(slowProxy.port);
    client.send(get('/files/1'));
    await received.promise;
    client.send(get('/files/2') + get('/files/3').replace('Bearer A', 'Bearer B'));
    await waitForDelivery();
    verified.resolve();
    const text = await client.until((all) => all.includes('invalid_token'));
    expect(text.match(/GET \/files\/\d|HTTP\/1\.1 401/g)).toEqual([
      'GET /files/1',
      'GET /files/2',
      'HTTP/1.1 401',
    ]);
    client.destroy();
  } finally {
    await slowProxy.close();
  }
});
