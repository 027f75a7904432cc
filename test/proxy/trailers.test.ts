import { once } from 'node:events';
import { connect } from 'node:http2';
import { createServer } from 'node:net';
import { describe, expect, onTestFinished, test } from 'vitest';
import { filterTrailers } from '../../src/http/trailers.ts';
import {
  CODE,
  dataFrame,
  type Field,
  FRAME,
  type FrameClient,
  type FrameClientOptions,
  frameClient,
  headersFrame,
  requestFields,
  SETTING,
  windowUpdateFrame,
} from '../support/http2-frames.ts';
import { type HarnessOptions, type ProxyHarness, startProxyHarness } from '../support/proxy-harness.ts';
import { connectRaw, connectRawTls, type RawClient } from '../support/raw-client.ts';
import { headerValues, type RecordingUpstream, startRecordingUpstream } from '../support/recording-upstream.ts';
import { listenTcp } from '../support/tcp-server.ts';
import { until } from '../support/until.ts';

async function setUp(
  options: Partial<HarnessOptions> = {},
): Promise<{ readonly proxy: ProxyHarness; readonly upstream: RecordingUpstream }> {
  const upstream = await startRecordingUpstream();
  onTestFinished(() => upstream.close());
  const proxy = await startProxyHarness({ upstream: upstream.url, tls: true, http2: true, ...options });
  onTestFinished(() => proxy.close());
  return { proxy, upstream };
}

async function openHttp2(proxy: ProxyHarness, options: Omit<FrameClientOptions, 'ca'> = {}): Promise<FrameClient> {
  const client = await frameClient(proxy.port, { ca: proxy.ca.pem, ...options });
  onTestFinished(() => client.destroy());
  return client;
}

async function openHttp1(proxy: ProxyHarness): Promise<RawClient> {
  const client = await connectRawTls(proxy.port, proxy.ca.pem);
  onTestFinished(() => client.destroy());
  return client;
}

/** The response to one HTTP/1.1 request on a new connection, which it closes. */
async function requestHttp1(proxy: ProxyHarness, fields: string, line = 'GET /public/1 HTTP/1.1'): Promise<string> {
  const client = await openHttp1(proxy);
  client.send(`${line}\r\nHost: a\r\nConnection: close\r\n${fields}\r\n`);
  return client.closed();
}

const CHUNKED = 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n';
const GET = requestFields('/public/1');
const POST = requestFields('/public/1', 'POST');

const FORBIDDEN = [
  'Content-Type: text/html',
  'Content-Encoding: gzip',
  'Set-Cookie: a=b',
  'Cache-Control: public',
  'WWW-Authenticate: Basic',
  'Location: /',
  'Access-Control-Allow-Origin: *',
  'Trailer: X-A',
  'Connection: close',
  'X-Request-Id: 1',
  'X-Forwarded-User: root',
  'x_forwarded_user: root',
  'X-Gatehouse-Identity: root',
];

describe('trailers of a response', () => {
  const respond = (upstream: RecordingUpstream, body: string, trailers: readonly string[]): void =>
    upstream.respondWith((socket) => void socket.write(`${CHUNKED}${body}0\r\n${trailers.join('\r\n')}\r\n\r\n`));

  test('reach an HTTP/2 client after the body', async () => {
    const { proxy, upstream } = await setUp();
    respond(upstream, '5\r\nhello\r\n', ['Grpc-Status: 0', 'X-Checksum: a', 'x-checksum:  b ']);
    const client = await openHttp2(proxy);
    const stream = client.request(GET);
    expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
    expect(client.body(stream)).toBe('hello');
    expect(client.trailers(stream)).toEqual([
      ['grpc-status', '0'],
      ['x-checksum', 'a'],
      ['x-checksum', 'b'],
    ]);
  });

  test('reach a client of node:http2', async () => {
    const { proxy, upstream } = await setUp();
    respond(upstream, '5\r\nhello\r\n', ['grpc-status: 5', 'grpc-message: none']);
    const session = connect(`https://localhost:${proxy.port}`, { ca: proxy.ca.pem });
    onTestFinished(() => session.destroy());
    const stream = session.request({ ':path': '/public/1' }).resume();
    const [trailers] = (await once(stream, 'trailers')) as [Record<string, unknown>];
    expect(trailers).toMatchObject({ 'grpc-status': '5', 'grpc-message': 'none' });
  });

  test('reach an HTTP/1.1 client only if it accepts them', async () => {
    const { proxy, upstream } = await setUp();
    respond(upstream, '5\r\nhello\r\n', ['X-Checksum: a']);
    for (const fields of ['TE: trailers\r\n', 'te: gzip;q=0.5 , Trailers\r\n', 'TE: gzip\r\nTE: trailers\r\n'])
      expect(await requestHttp1(proxy, fields)).toMatch(/\r\n\r\n5\r\nhello\r\n0\r\nX-Checksum: a\r\n\r\n$/);
    for (const fields of ['', 'TE: gzip\r\n', 'TE: xtrailers\r\n', 'TE: trailers;q=0\r\n'])
      expect(await requestHttp1(proxy, fields)).toMatch(/\r\n\r\n5\r\nhello\r\n0\r\n\r\n$/);
    expect(upstream.requests.flatMap((request) => headerValues(request, 'te'))).toEqual([]);
  });

  test('do not reach an HTTP/1.0 client', async () => {
    const { proxy, upstream } = await setUp();
    respond(upstream, '5\r\nhello\r\n', ['X-Checksum: a']);
    expect(await requestHttp1(proxy, 'TE: trailers\r\n', 'GET /public/1 HTTP/1.0')).toMatch(/\r\n\r\nhello$/);
  });

  test('follow an empty body', async () => {
    const { proxy, upstream } = await setUp();
    respond(upstream, '', ['grpc-status: 12']);
    const client = await openHttp2(proxy);
    const stream = client.request(GET);
    expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
    expect([client.dataFrames(stream), client.trailers(stream)]).toEqual([0, [['grpc-status', '12']]]);
    expect(await requestHttp1(proxy, 'TE: trailers\r\n')).toMatch(/\r\n\r\n0\r\ngrpc-status: 12\r\n\r\n$/);
  });

  test('are dropped if they belong into the header section, and the response is complete without them', async () => {
    const { proxy, upstream } = await setUp();
    respond(upstream, '5\r\nhello\r\n', [...FORBIDDEN, 'X-Checksum: a']);
    const client = await openHttp2(proxy);
    const stream = client.request(GET);
    expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
    expect(client.trailers(stream)).toEqual([['x-checksum', 'a']]);
    respond(upstream, '5\r\nhello\r\n', FORBIDDEN);
    const second = client.request(GET);
    expect(await client.waitForEnd(second)).toEqual({ status: 200 });
    expect(client.trailers(second)).toEqual([]);
    expect(await requestHttp1(proxy, 'TE: trailers\r\n')).toMatch(/\r\n\r\n5\r\nhello\r\n0\r\n\r\n$/);
  });

  test('wait for the body that waits for the window of the client', async () => {
    const { proxy, upstream } = await setUp();
    respond(upstream, `${(40_000).toString(16)}\r\n${'x'.repeat(40_000)}\r\n`, ['grpc-status: 0']);
    const client = await openHttp2(proxy, { settings: [[SETTING.initialWindowSize, 10_000]] });
    const stream = client.request(GET);
    for (const length of [10_000, 20_000, 39_999]) {
      await client.until(() => client.bodyLength(stream) === length);
      await client.waitForPong();
      expect([client.trailers(stream), client.endedCleanly(stream)]).toEqual([[], false]);
      client.send(windowUpdateFrame(stream, length === 10_000 ? 10_000 : length === 20_000 ? 19_999 : 1));
    }
    expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
    expect([client.bodyLength(stream), client.trailers(stream)]).toEqual([40_000, [['grpc-status', '0']]]);
    await until('the request has ended', () => proxy.activeRequests() === 0);
  });

  test('that a client never waits for do not keep the stream', async () => {
    const { proxy, upstream } = await setUp();
    respond(upstream, `${(40_000).toString(16)}\r\n${'x'.repeat(40_000)}\r\n`, ['grpc-status: 0']);
    const client = await openHttp2(proxy, { settings: [[SETTING.initialWindowSize, 10_000]] });
    const stream = client.request(GET);
    await client.until(() => client.bodyLength(stream) === 10_000);
    client.destroy();
    await until('the request has ended', () => proxy.activeRequests() === 0);
  });

  test('of HEAD and of a response without a body do not exist, and the connection remains in use', async () => {
    const { proxy, upstream } = await setUp();
    const client = await openHttp2(proxy);
    upstream.respondWith(
      (socket, { method }) => void socket.write(method === 'HEAD' ? CHUNKED : 'HTTP/1.1 204 A\r\n\r\n'),
    );
    for (const [method, status] of [
      ['HEAD', 200],
      ['GET', 204],
    ] as const) {
      const stream = client.request(requestFields('/public/1', method));
      expect(await client.waitForEnd(stream)).toEqual({ status });
      expect([client.trailers(stream), client.bodyLength(stream)]).toEqual([[], 0]);
    }
  });

  test('that break off, or are malformed or too long, abort the response', async () => {
    const { proxy, upstream } = await setUp();
    const client = await openHttp2(proxy);
    for (const [trailers, ends] of [
      ['grpc-status: 0\r\n', true],
      ['grpc-sta', true],
      ['', true],
      ['grpc-status 0\r\n\r\n', false],
      ['grpc-status: 0\nx: y\r\n\r\n', false],
      ['grpc-message: a\rset-cookie: b\r\n\r\n', false],
      [' folded: 0\r\n\r\n', false],
      [`grpc-message: ${'x'.repeat(2_000)}\r\n\r\n`, false],
      [`${`a: ${'x'.repeat(500)}\r\n`.repeat(40)}\r\n`, false],
    ] as const) {
      upstream.respondWith((socket) => {
        socket.write(`${CHUNKED}5\r\nhello\r\n`);
        // The body must have been forwarded: a response that has not begun gets an error status.
        void until('the client has the body', () => client.bodyLength(stream) === 5).then(() => {
          socket.write(`0\r\n${trailers}`);
          if (ends) socket.end();
        });
      });
      const stream = client.request(GET);
      expect([trailers, await client.waitForEnd(stream)]).toEqual([trailers, { reset: CODE.internalError }]);
      expect([client.endedCleanly(stream), client.trailers(stream)]).toEqual([false, []]);
    }
  });

  test('that break off abort the response of an HTTP/1.1 client', async () => {
    const { proxy, upstream } = await setUp();
    upstream.respondWith((socket) => void socket.end(`${CHUNKED}5\r\nhello\r\n0\r\nX-Checksum: a\r\n`));
    expect(await requestHttp1(proxy, 'TE: trailers\r\n')).not.toContain('\r\n0\r\n');
  });
});

describe('trailers of a request', () => {
  const [CHUNKS, TRAILERS] = ['3\r\nabc\r\n', 'X-Checksum: a\r\nx-other:  b \r\n'];
  const HEAD = 'POST /public/1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n';

  test.each([0, 65_536])(
    'over HTTP/1.1 reach the upstream after the body, with a buffer of %i bytes',
    async (bodyBuffer) => {
      const { proxy, upstream } = await setUp({ upstreamSettings: { bodyBuffer } });
      const client = await openHttp1(proxy);
      client.send(`${HEAD}${CHUNKS}0\r\n${TRAILERS}\r\n`);
      await client.until((text) => text.endsWith('POST /public/1'));
      client.send(`${HEAD}0\r\n${TRAILERS}\r\n`);
      await until('the upstream has the second one', () => upstream.requests.length === 2);
      client.send(HEAD);
      client.send(CHUNKS);
      await until(
        'the upstream has the third head',
        () => bodyBuffer > 0 || upstream.connectionStreams().some(({ unfinished }) => unfinished !== ''),
      );
      client.send(`0\r\n${TRAILERS}`);
      client.send('\r\n');
      await until('the upstream has the third one', () => upstream.requests.length === 3);
      const expected = ['X-Checksum: a', 'x-other: b'];
      expect(upstream.requests.map(({ body, trailers }) => [body, trailers])).toEqual([
        ['abc', expected],
        ['', expected],
        ['abc', expected],
      ]);
      expect(upstream.requests.map((request) => headerValues(request, 'content-length'))).toEqual([[], [], []]);
      expect(upstream.connectionCount()).toBe(1);
    },
  );

  test('over HTTP/2 reach the upstream after the body', async () => {
    const { proxy, upstream } = await setUp();
    const client = await openHttp2(proxy);
    const trailers: Field[] = [['x-checksum', 'a']];
    const together = client.request(POST, { end: false });
    client.send(dataFrame(together, 'abc'), headersFrame(together, trailers));
    expect(await client.waitForEnd(together)).toEqual({ status: 200 });
    const alone = client.request(POST, { end: false });
    client.send(headersFrame(alone, trailers));
    expect(await client.waitForEnd(alone)).toEqual({ status: 200 });
    const later = client.request(POST, { end: false });
    client.send(dataFrame(later, 'abc'));
    await client.waitForPong();
    client.send(headersFrame(later, trailers));
    expect(await client.waitForEnd(later)).toEqual({ status: 200 });
    expect(upstream.requests.map((request) => [request.body, request.trailers])).toEqual([
      ['abc', ['x-checksum: a']],
      ['', ['x-checksum: a']],
      ['abc', ['x-checksum: a']],
    ]);
  });

  test('of a method without a body, and those that a client may not send as header fields, are dropped', async () => {
    const { proxy, upstream } = await setUp();
    const names = [
      'X-Forwarded-For',
      'X_Forwarded_User',
      'X-Forwarded-Client-Id',
      'X-Request-Id',
      'Client-Cert',
      'X-Original-Uri',
    ];
    const fields = [
      ...FORBIDDEN,
      'Authorization: Bearer B',
      'Cookie: a=b',
      'TE: trailers',
      'If-Match: a',
      'Range: bytes=0-1',
      'Expect: a',
      'traceparent: a',
      ...names.map((name) => `${name}: evil`),
    ];
    const client = await openHttp1(proxy);
    client.send(`${HEAD}${CHUNKS}0\r\n${fields.join('\r\n')}\r\nX-Kept: 1\r\n\r\n`);
    await until('the upstream has the request', () => upstream.requests.length === 1);
    client.send(`${HEAD}${CHUNKS}0\r\n${fields.join('\r\n')}\r\n\r\n`);
    await until('the upstream has the request', () => upstream.requests.length === 2);
    client.send(`${HEAD.replace('POST', 'GET')}0\r\nX-Kept: 1\r\n\r\n`);
    await until('the upstream has the request', () => upstream.requests.length === 3);
    expect(upstream.requests.map(({ body, trailers }) => [body, trailers])).toEqual([
      ['abc', ['X-Kept: 1']],
      ['abc', []],
      ['', []],
    ]);
    // Without trailers, its length is known.
    expect(headerValues(upstream.requests[1], 'content-length')).toEqual(['3']);
  });

  test('with a line break are no request, over both protocols', async () => {
    const { proxy, upstream } = await setUp();
    const client = await openHttp2(proxy);
    for (const value of ['a\r\nx-forwarded-user: evil', 'a\nb', 'a\rb', 'a\0b']) {
      const stream = client.request(POST, { end: false });
      client.send(dataFrame(stream, 'abc'), headersFrame(stream, [['x-checksum', value]]));
      expect(await client.waitForEnd(stream)).toEqual({ reset: CODE.protocolError });
    }
    for (const value of ['a\nb', 'a\rb', 'a\0b']) {
      const http1 = await openHttp1(proxy);
      http1.send(`${HEAD}${CHUNKS}0\r\nX-Checksum: ${value}\r\n\r\n`);
      expect(await http1.closed()).toMatch(/^HTTP\/1\.1 400 /);
    }
    expect(upstream.requests).toEqual([]);
  });

  test('that exceed the size of a header section end their stream', async () => {
    const { proxy, upstream } = await setUp();
    const client = await openHttp2(proxy);
    const large: Field = ['x-checksum', 'a'.repeat(8_160)];
    const stream = client.request(POST, { end: false });
    client.send(dataFrame(stream, 'abc'), headersFrame(stream, [large, large]));
    expect(await client.waitForEnd(stream)).toEqual({ reset: CODE.enhanceYourCalm });
    expect(upstream.requests).toEqual([]);
    expect(await client.waitForEnd(client.request(GET))).toEqual({ status: 200 });
  });
});

test('trailers pass through while both sides send at the same time', async () => {
  const upstream = await listenTcp(
    createServer((socket) => {
      let received = '';
      socket.on('data', (bytes) => {
        const begins = received === '';
        received += bytes.toString('latin1');
        if (begins) socket.write(`${CHUNKED}5\r\nfirst\r\n`);
        if (received.endsWith('0\r\nx-sent: 1\r\n\r\n')) socket.write('0\r\ngrpc-status: 0\r\n\r\n');
      });
    }),
  );
  onTestFinished(() => upstream.close());
  const { proxy } = await setUp({ upstream: `http://127.0.0.1:${upstream.port}`, upstreamSettings: { bodyBuffer: 0 } });
  const client = await openHttp2(proxy);
  const stream = client.request(POST, { end: false });
  client.send(dataFrame(stream, 'abc'));
  await client.until(() => client.body(stream) === 'first');
  client.send(dataFrame(stream, 'def'), headersFrame(stream, [['x-sent', '1']]));
  expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
  expect(client.trailers(stream)).toEqual([['grpc-status', '0']]);
  expect(client.frames.filter(({ type, stream: id }) => type === FRAME.reset && id === stream)).toEqual([]);
});

test('a plain HTTP/1.1 listener forwards trailers too', async () => {
  const upstream = await startRecordingUpstream();
  onTestFinished(() => upstream.close());
  const proxy = await startProxyHarness({ upstream: upstream.url });
  onTestFinished(() => proxy.close());
  upstream.respondWith((socket) => void socket.write(`${CHUNKED}2\r\nab\r\n0\r\nX-T: 1\r\n\r\n`));
  const client = await connectRaw(proxy.port);
  onTestFinished(() => client.destroy());
  const request = 'GET /public/1 HTTP/1.1\r\nHost: a\r\n';
  client.send(`${request}TE: trailers\r\n\r\n${request}\r\n`);
  await client.until((text) => /2\r\nab\r\n0\r\nX-T: 1\r\n\r\nHTTP[^]*2\r\nab\r\n0\r\n\r\n$/.test(text));
  expect(client.closeKind()).toBeUndefined();
});

describe('filterTrailers', () => {
  test('keeps what may be in trailers', () => {
    const kept = ['grpc-status', '0', 'Server-Timing', 'a', 'ETag', '"a"', 'Content-Digest', 'a', 'x-empty', ''];
    expect(filterTrailers(kept)).toEqual(kept);
  });

  test.each([
    ['a line break in a value', ['a', 'b\r\nset-cookie: c']],
    ['a NUL in a value', ['a', 'b\0']],
    ['a line break in a name', ['a\r\nb', 'c']],
    ['a colon in a name', [':status', '200']],
    ['an empty name', ['', 'a']],
    ['a character that is more than a byte', ['a', '\u{100}']],
    ['the framing', ['Content-Length', '1', 'transfer_encoding', 'chunked', 'Host', 'a']],
  ])('drops %s', (_, list) => {
    expect(filterTrailers(list)).toBeUndefined();
    expect(filterTrailers([...list, 'x-kept', '1'])).toEqual(['x-kept', '1']);
  });
});
