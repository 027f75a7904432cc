import { createServer as createHttpServer } from 'node:http';
import { createServer, type Socket } from 'node:net';
import { afterEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import {
  encodeGrpcMessage,
  GrpcMessageTracker,
  getGrpcMethod,
  parseGrpcTimeout,
  readGrpcCall,
  readGrpcStatus,
} from '../../src/http/grpc.ts';
import { createRefusalReply } from '../../src/proxy/policy/refusals.ts';
import {
  CODE,
  dataFrame,
  type Field,
  FLAG,
  FRAME,
  type FrameClient,
  type FrameClientOptions,
  frameClient,
  requestFields,
  resetFrame,
  SETTING,
} from '../support/http2-frames.ts';
import { createHttpsClient } from '../support/https-client.ts';
import { bearer, type HarnessOptions, type ProxyHarness, rule, startProxyHarness } from '../support/proxy-harness.ts';
import { headerValues, type RecordingUpstream, startRecordingUpstream } from '../support/recording-upstream.ts';
import { listenTcp } from '../support/tcp-server.ts';
import { until } from '../support/until.ts';

afterEach(() => void vi.useRealTimers());

const RULES = [
  rule('/test.Public/*', 'public'),
  rule('/test.Files/*', 'files:read'),
  rule('/test.Admin/*', 'admin:manage'),
];

/** A message with its prefix. */
function message(text: string): string {
  const prefix = Buffer.alloc(5);
  prefix.writeUInt32BE(text.length, 1);
  return prefix.toString('latin1') + text;
}

const chunk = (text: string): string => `${text.length.toString(16)}\r\n${text}\r\n`;
const RESPONSE = 'HTTP/1.1 200 OK\r\nContent-Type: application/grpc+proto\r\nTransfer-Encoding: chunked\r\n\r\n';

const call = (path: string, more: readonly Field[] = [], contentType = 'application/grpc'): Field[] => [
  ...requestFields(path, 'POST'),
  ['content-type', contentType],
  ['te', 'trailers'],
  ...more,
];

async function openProxy(options: HarnessOptions): Promise<ProxyHarness> {
  const proxy = await startProxyHarness({ rules: RULES, tls: true, http2: true, ...options });
  onTestFinished(() => proxy.close());
  return proxy;
}

async function setUp(
  options: Partial<HarnessOptions> = {},
): Promise<{ readonly proxy: ProxyHarness; readonly upstream: RecordingUpstream }> {
  const upstream = await startRecordingUpstream();
  onTestFinished(() => upstream.close());
  return { proxy: await openProxy({ upstream: upstream.url, ...options }), upstream };
}

async function openClient(proxy: ProxyHarness, options: Omit<FrameClientOptions, 'ca'> = {}): Promise<FrameClient> {
  const client = await frameClient(proxy.port, { ca: proxy.ca.pem, ...options });
  onTestFinished(() => client.destroy());
  return client;
}

/** An upstream that writes `first` when a request has begun, and gives the test its connections. */
async function startStreamingUpstream(first: string): Promise<{ readonly url: string; readonly sockets: Socket[] }> {
  const sockets: Socket[] = [];
  const server = await listenTcp(
    createServer((socket) => {
      sockets.push(socket);
      socket.once('data', () => void socket.write(first, 'latin1')).resume();
    }),
  );
  onTestFinished(() => server.close());
  return { url: `http://127.0.0.1:${server.port}`, sockets };
}

const getField = (fields: readonly Field[], name: string): string | undefined =>
  fields.find(([given]) => given === name)?.[1];

/** The fields of a response that is only a header section; fails if it is not. */
async function readTrailersOnly(client: FrameClient, stream: number): Promise<readonly Field[]> {
  expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
  const frames = client.frames.filter(({ stream: id, type }) => id === stream && type !== FRAME.windowUpdate);
  expect(frames.map(({ type }) => type)).toEqual([FRAME.headers]);
  expect((frames[0]?.flags ?? 0) & FLAG.endStream).toBe(FLAG.endStream);
  return client.fields(stream);
}

const grpcResult = (fields: readonly Field[]): (string | undefined)[] =>
  ['grpc-status', 'grpc-message'].map((name) => getField(fields, name));

describe('a call', () => {
  test('gets the messages and the result of the upstream', async () => {
    const { proxy, upstream } = await setUp();
    upstream.respondWith(
      (socket) =>
        void socket.write(
          `${RESPONSE}${chunk(message('reply'))}0\r\ngrpc-status: 5\r\ngrpc-message: no%20file\r\n\r\n`,
          'latin1',
        ),
    );
    const client = await openClient(proxy);
    const stream = client.post(
      call('/test.Files/Get', [
        ['authorization', 'Bearer A'],
        ['grpc-timeout', '10S'],
        ['x-metadata-bin', 'AAEC'],
      ]),
      message('request'),
    );
    expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
    expect(client.body(stream)).toBe(message('reply'));
    expect(client.trailers(stream)).toEqual([
      ['grpc-status', '5'],
      ['grpc-message', 'no%20file'],
    ]);
    const [request] = upstream.requests;
    expect([request?.target, request?.body]).toEqual(['/test.Files/Get', message('request')]);
    expect(['grpc-timeout', 'x-metadata-bin', 'content-type'].map((name) => headerValues(request, name))).toEqual([
      ['10S'],
      ['AAEC'],
      ['application/grpc'],
    ]);
    expect(proxy.notes[0]).toMatchObject({ decision: 'forwarded', grpcStatus: 5, grpcMethod: 'test.Files/Get' });
    // It was not a stream: its duration is a latency.
    expect(proxy.notes[0]?.transfer?.isEventStream).toBe(false);
  });

  test('that has a result in the header section of its response is logged with it', async () => {
    const { proxy, upstream } = await setUp();
    upstream.respondWith(
      (socket) =>
        void socket.write(
          'HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\ngrpc-status: 12\r\nContent-Length: 0\r\n\r\n',
        ),
    );
    const client = await openClient(proxy);
    expect(
      getField(await readTrailersOnly(client, client.post(call('/test.Public/A'), message('a'))), 'grpc-status'),
    ).toBe('12');
    expect(proxy.notes[0]).toMatchObject({ grpcStatus: 12 });
  });

  test('that its client cancels is cancelled at the upstream', async () => {
    const upstream = await startStreamingUpstream(`${RESPONSE}${chunk(message('first'))}`);
    const proxy = await openProxy({ upstream: upstream.url });
    const client = await openClient(proxy);
    const stream = client.post(call('/test.Public/Watch'), message('a'));
    await client.until(() => client.bodyLength(stream) > 0);
    client.send(resetFrame(stream));
    await until(
      'the upstream connection is closed',
      () => upstream.sockets[0]?.destroyed === true || upstream.sockets[0]?.readableEnded === true,
    );
    expect(proxy.notes[0]?.reason).toBe('client_disconnected');
  });
});

describe('a refused call', () => {
  test.each([
    ['without a token', '/test.Files/Get', undefined, '16', 'A bearer token is required.', 'token_missing'],
    [
      'with an unknown token',
      '/test.Files/Get',
      'X',
      '16',
      'The access token was not issued by this service.',
      'token_not_authentic',
    ],
    [
      'without the scope',
      '/test.Admin/Get',
      'A',
      '7',
      'The access token lacks the required scope: admin:manage.',
      'insufficient_scope: admin:manage',
    ],
    ['without a route', '/test.Unknown/Get', 'A', '12', 'No route matches this request.', 'no_rule'],
  ])('%s gets its result and no body', async (_, path, token, status, text, reason) => {
    const { proxy, upstream } = await setUp();
    const client = await openClient(proxy);
    const stream = client.post(
      call(path, token === undefined ? [] : [['authorization', `Bearer ${token}`]]),
      message('a'),
    );
    const fields = await readTrailersOnly(client, stream);
    expect(grpcResult(fields)).toEqual([status, text]);
    expect(getField(fields, 'content-type')).toBe('application/grpc');
    expect(getField(fields, 'content-length') ?? '0').toBe('0');
    expect(getField(fields, 'www-authenticate')?.startsWith('Bearer realm="gatehouse"') ?? false).toBe(status !== '12');
    expect(upstream.requests).toEqual([]);
    expect(proxy.notes[0]).toMatchObject({ decision: 'refused', grpcStatus: Number(status) });
    expect(proxy.notes[0]?.reason?.startsWith(reason)).toBe(true);
  });

  test('gets UNAVAILABLE if the upstream is down, and RESOURCE_EXHAUSTED if its message is too large', async () => {
    const { proxy } = await setUp({ upstream: 'http://127.0.0.1:1' });
    const client = await openClient(proxy, { updateWindows: true });
    expect(
      getField(await readTrailersOnly(client, client.post(call('/test.Public/A'), message('a'))), 'grpc-status'),
    ).toBe('14');
    const stream = client.request(call('/test.Public/A', [['content-length', '2000000']]), { end: false });
    await client.until(() => client.outcome(stream) !== undefined);
    expect(getField(client.fields(stream), 'grpc-status')).toBe('8');
  });

  test('that is authorized too late gets UNAUTHENTICATED', async () => {
    const { proxy } = await setUp({ tokens: { A: bearer({ expires: 1 }) } });
    const client = await openClient(proxy);
    const stream = client.post(call('/test.Files/Get', [['authorization', 'Bearer A']]), message('a'));
    expect(grpcResult(await readTrailersOnly(client, stream))).toEqual(['16', 'The access token has expired.']);
  });

  test('gets the time after which to retry', () => {
    const grpc = readGrpcCall('application/grpc', undefined, true);
    const { status, loggedStatus, headers, body } = createRefusalReply(
      { reason: 'overloaded', retryAfter: 3 },
      { requestId: 'id', grpc },
    );
    expect([status, loggedStatus, body]).toEqual([200, 503, undefined]);
    expect(headers).toMatchObject({ 'grpc-status': '14', 'grpc-retry-pushback-ms': '3000', 'retry-after': '3' });
    const limited = { reason: 'rate_limited', limit: 'grün 100%', retryAfter: 1, policy: 'p', state: 's' } as const;
    expect(createRefusalReply(limited, { requestId: 'id', grpc }).headers).toMatchObject({
      'grpc-status': '8',
      'grpc-message': 'Too many requests: the limit "gr%C3%BCn 100%25" of this route is exceeded.',
      'ratelimit-policy': 'p',
    });
  });

  test.each([
    ['application/grpc+proto', 'application/grpc+proto'],
    ['Application/GRPC; charset=a', 'application/grpc'],
    ['application/grpc-web', 'application/grpc-web'],
    ['application/grpc-web+json', 'application/grpc-web+json'],
    ['application/grpc-web-text', 'application/grpc-web-text'],
  ])('with the content type %s gets %s', async (sent, received) => {
    const { proxy } = await setUp();
    const client = await openClient(proxy);
    const fields = await readTrailersOnly(client, client.post(call('/test.Files/Get', [], sent), message('a')));
    expect([getField(fields, 'content-type'), getField(fields, 'grpc-status')]).toEqual([received, '16']);
  });

  test.each(['application/grpcx', 'application/json', 'text/application/grpc', 'application/grpc\\a', ''])(
    'is no call with the content type %j, and gets an HTTP status',
    async (contentType) => {
      const { proxy } = await setUp();
      const client = await openClient(proxy);
      const stream = client.post(call('/test.Files/Get', [], contentType), message('a'));
      expect(await client.waitForEnd(stream)).toEqual({ status: 401 });
      expect(getField(client.fields(stream), 'grpc-status')).toBeUndefined();
      expect(proxy.notes[0]?.grpcMethod).toBeUndefined();
    },
  );

  test('over HTTP/1.1 gets an HTTP status for gRPC, and its result for gRPC-Web', async () => {
    const { proxy } = await setUp();
    const client = createHttpsClient({ port: proxy.port, ca: proxy.ca.pem });
    onTestFinished(() => client.close());
    const send = (contentType: string) =>
      client.request({
        method: 'POST',
        path: '/test.Files/Get',
        headers: { 'content-type': contentType },
        body: message('a'),
      });
    expect((await send('application/grpc')).status).toBe(401);
    const { status, headers, text } = await send('application/grpc-web+proto');
    expect([status, headers['content-type'], headers['grpc-status'], text]).toEqual([
      200,
      'application/grpc-web+proto',
      '16',
      '',
    ]);
  });

  test('is no call with another method than POST, and gets an HTTP status', async () => {
    const { proxy } = await setUp();
    const client = await openClient(proxy);
    const fields = call('/test.Files/Get').map(([name, value]): Field => [name, name === ':method' ? 'GET' : value]);
    expect(await client.waitForEnd(client.request(fields))).toEqual({ status: 401 });
  });

  test('of gatehouse itself gets an HTTP status: a gateway that asks about a call would mistake 200 for its approval', async () => {
    const { proxy } = await setUp({
      serve: () => {
        throw new Error('a fault');
      },
    });
    const client = await openClient(proxy);
    const stream = client.post(call('/authsvc/check/test.Files/Get'), message('a'));
    expect(await client.waitForEnd(stream)).toEqual({ status: 500 });
    expect(getField(client.fields(stream), 'grpc-status')).toBeUndefined();
  });

  test('of gRPC-Web can be read by the pages of allowed origins', () => {
    const grpc = readGrpcCall('application/grpc-web', undefined, false);
    const expose = (cors: Record<string, string>) =>
      createRefusalReply({ reason: 'token_missing' }, { requestId: 'id', grpc, cors }).headers[
        'Access-Control-Expose-Headers'
      ];
    expect(expose({ 'Access-Control-Allow-Origin': '*' })).toBe('grpc-status, grpc-message');
    expect(expose({ 'Access-Control-Allow-Origin': '*', 'Access-Control-Expose-Headers': 'X-A' })).toBe(
      'X-A, grpc-status, grpc-message',
    );
    expect(expose({ Vary: 'Origin' })).toBeUndefined();
  });
});

describe('the deadline of a call', () => {
  const timeout = (value: string): Field => ['grpc-timeout', value];

  test('ends it before the response has begun, and the request to the upstream with it', async () => {
    const upstream = await startStreamingUpstream('');
    const proxy = await openProxy({ upstream: upstream.url });
    const client = await openClient(proxy);
    const stream = client.post(call('/test.Public/A', [timeout('300m')]), message('a'));
    expect(grpcResult(await readTrailersOnly(client, stream))).toEqual(['4', 'The deadline of the call has passed.']);
    await until(
      'the upstream connection is closed',
      () => upstream.sockets[0]?.readableEnded === true || upstream.sockets[0]?.destroyed === true,
    );
    expect(proxy.notes[0]).toMatchObject({ decision: 'failed', reason: 'deadline_exceeded', grpcStatus: 4 });
  });

  test('ends a response between two messages with the result', async () => {
    const upstream = await startStreamingUpstream(`${RESPONSE}${chunk(message('first'))}`);
    const proxy = await openProxy({ upstream: upstream.url });
    const client = await openClient(proxy);
    const stream = client.post(call('/test.Public/A', [timeout('300m')]), message('a'));
    expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
    expect(client.body(stream)).toBe(message('first'));
    expect(grpcResult(client.trailers(stream))).toEqual(['4', 'The deadline of the call has passed.']);
    expect(proxy.notes[0]).toMatchObject({ reason: 'deadline_exceeded', grpcStatus: 4 });
  });

  test('resets the stream within a message', async () => {
    const upstream = await startStreamingUpstream(`${RESPONSE}${chunk(message('first').slice(0, -1))}`);
    const proxy = await openProxy({ upstream: upstream.url });
    const client = await openClient(proxy);
    const stream = client.post(call('/test.Public/A', [timeout('300m')]), message('a'));
    expect(await client.waitForEnd(stream)).toEqual({ reset: CODE.cancel });
    expect(client.trailers(stream)).toEqual([]);
  });

  test('resets the stream if the client has not read what was sent', async () => {
    const upstream = await startStreamingUpstream(`${RESPONSE}${chunk(message('x'.repeat(10_000)))}`);
    const proxy = await openProxy({ upstream: upstream.url });
    const client = await openClient(proxy, { settings: [[SETTING.initialWindowSize, 1_000]] });
    const stream = client.post(call('/test.Public/A', [timeout('300m')]), message('a'));
    expect(await client.waitForEnd(stream)).toEqual({ reset: CODE.cancel });
  });

  test('that has passed already is not forwarded', async () => {
    const { proxy, upstream } = await setUp();
    const client = await openClient(proxy);
    const stream = client.post(call('/test.Public/A', [timeout('0n')]), message('a'));
    expect(getField(await readTrailersOnly(client, stream), 'grpc-status')).toBe('4');
    expect(upstream.requests).toEqual([]);
  });

  test('that is malformed is ignored and forwarded', async () => {
    const { proxy, upstream } = await setUp();
    const client = await openClient(proxy);
    for (const fields of [[timeout('1x')], [timeout('123456789n')], [timeout('-1S')], [timeout('0n'), timeout('0n')]]) {
      const stream = client.post(call('/test.Public/A', fields), message('a'));
      expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
      expect(headerValues(upstream.requests.at(-1), 'grpc-timeout')).toEqual(fields.map(([, value]) => value));
    }
  });

  test('is nothing to requests that are no calls', async () => {
    const { proxy } = await setUp();
    const client = await openClient(proxy);
    const stream = client.post(call('/test.Public/A', [timeout('0n')], 'application/json'), '{}');
    expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
  });
});

describe('a stream of messages', () => {
  const AUTHORIZED: Field[] = [['authorization', 'Bearer A']];

  const openStream = async (first: string, path = '/test.Files/Watch') => {
    let isRevoked = false;
    const upstream = await startStreamingUpstream(first);
    const proxy = await openProxy({ upstream: upstream.url, revocations: { isRevoked: () => isRevoked } });
    const client = await openClient(proxy);
    const stream = client.request(call(path, AUTHORIZED), { end: false });
    client.send(dataFrame(stream, message('a')));
    await client.waitForPong();
    // The beginning of the request is buffered for a moment.
    if (vi.isFakeTimers()) await vi.advanceTimersByTimeAsync(1_000);
    await client.until(() => client.bodyLength(stream) > 0);
    const revoke = (): void => {
      isRevoked = true;
    };
    return { upstream, proxy, client, stream, revoke };
  };

  test('ends with its grant, with the result UNAUTHENTICATED', async () => {
    const { upstream, proxy, client, stream, revoke } = await openStream(`${RESPONSE}${chunk(message('first'))}`);
    revoke();
    expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
    expect(grpcResult(client.trailers(stream))).toEqual(['16', 'The access token has been revoked.']);
    await until(
      'the upstream connection is closed',
      () => upstream.sockets[0]?.readableEnded === true || upstream.sockets[0]?.destroyed === true,
    );
    expect(proxy.notes[0]).toMatchObject({ reason: 'ended: token_revoked', grpcStatus: 16 });
    // The connection serves other calls.
    expect(await client.waitForEnd(client.post(call('/test.Files/Get', AUTHORIZED), message('a')))).toEqual({
      status: 200,
    });
  });

  test('is reset at the end of its grant if a message is incomplete', async () => {
    const { client, stream, revoke } = await openStream(`${RESPONSE}${chunk(message('first').slice(0, 3))}`);
    revoke();
    expect(await client.waitForEnd(stream)).toEqual({ reset: CODE.internalError });
  });

  test('is reset if the upstream breaks it off', async () => {
    const { upstream, proxy, client, stream } = await openStream(`${RESPONSE}${chunk(message('first'))}`);
    upstream.sockets[0]?.destroy();
    expect(await client.waitForEnd(stream)).toEqual({ reset: CODE.internalError });
    expect(proxy.notes[0]).toMatchObject({ reason: 'upstream_aborted' });
    expect(proxy.notes[0]?.grpcStatus).toBeUndefined();
  });

  test('may be silent for as long as an event stream, also while the client may still send', async () => {
    vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval', 'performance'] });
    const { upstream, proxy, client, stream } = await openStream(`${RESPONSE}${chunk(message('first'))}`);
    await vi.advanceTimersByTimeAsync(60_000);
    upstream.sockets[0]?.write(chunk(message('second')), 'latin1');
    await client.until(() => client.body(stream) === message('first') + message('second'));
    expect(proxy.notes[0]?.transfer?.isEventStream).toBe(true);
    await vi.advanceTimersByTimeAsync(3_700_000);
    expect(await client.waitForEnd(stream)).toEqual({ reset: CODE.internalError });
  });

  test('is one only if the response is one of gRPC', async () => {
    vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval', 'performance'] });
    const { client, stream } = await openStream(
      `${RESPONSE.replace('application/grpc+proto', 'text/plain')}${chunk('first')}`,
    );
    await vi.advanceTimersByTimeAsync(60_000);
    expect(await client.waitForEnd(stream)).toEqual({ reset: CODE.internalError });
  });
});

test('many calls on one connection get their own results', async () => {
  const server = await listenTcp(
    createHttpServer((request, response) => {
      const id = String(Number(request.headers['x-call'] ?? 0) % 17);
      request.resume().on('end', () => {
        response.writeHead(200, { 'content-type': 'application/grpc', trailer: 'grpc-status' });
        response.write(Buffer.from(message(id), 'latin1'));
        response.addTrailers({ 'grpc-status': id });
        response.end();
      });
    }),
  );
  onTestFinished(() => server.close());
  const proxy = await openProxy({ upstream: `http://127.0.0.1:${server.port}` });
  const client = await openClient(proxy, { updateWindows: true });
  const streams = Array.from({ length: 80 }, (_, index) =>
    client.post(call('/test.Public/A', [['x-call', String(index)]]), message('a')),
  );
  for (const [index, stream] of streams.entries()) {
    expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
    const id = String(index % 17);
    expect([client.body(stream), client.trailers(stream)]).toEqual([message(id), [['grpc-status', id]]]);
  }
});

describe('the parts of the protocol', () => {
  test('timeouts', () => {
    expect(['1H', '2M', '3S', '4m', '5u', '6n', '99999999H', '0S'].map(parseGrpcTimeout)).toEqual([
      3_600,
      120,
      3,
      0.004,
      5 * 1e-6,
      6 * 1e-9,
      359_999_996_400,
      0,
    ]);
    expect(['', '1', 'S', '1s', '1 S', ' 1S', '1.5S', '+1S', '123456789S', '1SS'].map(parseGrpcTimeout)).toEqual(
      Array(10).fill(undefined),
    );
  });

  test('statuses', () => {
    expect(['0', '5', '16'].map((value) => readGrpcStatus(['Grpc-Status', value]))).toEqual([0, 5, 16]);
    expect(['', '17', '00', '-1', '1 ', '0x1'].map((value) => readGrpcStatus(['grpc-status', value]))).toEqual(
      Array(6).fill(undefined),
    );
    expect(readGrpcStatus(['grpc-status', '0', 'grpc-status', '16'])).toBeUndefined();
  });

  test('status messages', () => {
    expect(encodeGrpcMessage('a b~%\r\n\u{e4}\u{1f600}\x7f')).toBe('a b~%25%0D%0A%C3%A4%F0%9F%98%80%7F');
  });

  test('methods', () => {
    expect(getGrpcMethod('/grpc.health.v1.Health/Check')).toBe('grpc.health.v1.Health/Check');
    for (const path of ['/', '/a', '/a/b/c', '/a/b?c', '/a b/c', `/a/${'b'.repeat(200)}`])
      expect(getGrpcMethod(path)).toBeUndefined();
  });

  test('messages in pieces of any size', () => {
    const bytes = Buffer.from(message('one') + message('') + message('x'.repeat(300)), 'latin1');
    const ends = new Set([0, 8, 13, 318]);
    for (let size = 1; size <= bytes.length; size += 1) {
      const tracker = new GrpcMessageTracker();
      for (let at = 0; at < bytes.length; at += size) {
        expect([size, at, tracker.isBetweenMessages]).toEqual([size, at, ends.has(at)]);
        tracker.read(bytes, at, Math.min(bytes.length, at + size));
      }
      expect(tracker.isBetweenMessages).toBe(true);
    }
  });
});
