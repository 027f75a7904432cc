import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { request as httpRequest } from 'node:http';
import {
  createSecureServer,
  createServer,
  type Http2Server,
  type IncomingHttpHeaders,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from 'node:http2';
import type { AddressInfo } from 'node:net';
import { describe, expect, onTestFinished, test } from 'vitest';
import { createCa, issueServer } from '../../../support/pki.ts';
import { type HarnessOptions, startProxyHarness } from '../../../support/proxy-harness.ts';
import { tempFolder } from '../../../support/temp-folder.ts';
import { until } from '../../../support/until.ts';

type Listener = (stream: ServerHttp2Stream, headers: IncomingHttpHeaders) => void;

async function startHttp2Upstream(listener: Listener, isSecure: boolean, settings: object = {}) {
  const ca = await createCa();
  const certificate = await issueServer(ca);
  const folder = tempFolder();
  const server: Http2Server = isSecure
    ? createSecureServer({ cert: certificate.pem, key: certificate.keyPem, settings })
    : createServer({ settings });
  const sessions = new Set<ServerHttp2Session>();
  server.on('session', (session) => {
    sessions.add(session);
    session.on('close', () => sessions.delete(session)).on('error', () => {});
  });
  server.on('stream', (stream: ServerHttp2Stream, headers: IncomingHttpHeaders) => {
    stream.on('error', () => {});
    listener(stream, headers);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  onTestFinished(() => {
    for (const session of sessions) session.destroy();
    server.close();
    folder.remove();
  });
  return {
    port,
    sessions,
    url: `${isSecure ? 'https' : 'http'}://127.0.0.1:${port}`,
    settings: {
      protocol: 'http2' as const,
      ...(isSecure && { ca: folder.write('ca.pem', ca.pem), serverName: 'localhost' }),
    },
  };
}

async function setUp(listener: Listener, isSecure = false, options: Partial<HarnessOptions> = {}, serverSettings = {}) {
  const upstream = await startHttp2Upstream(listener, isSecure, serverSettings);
  const { upstreamSettings, ...rest } = options;
  const proxy = await startProxyHarness({
    upstream: upstream.url,
    upstreamSettings: { ...upstream.settings, ...upstreamSettings },
    ...rest,
  });
  onTestFinished(() => proxy.close());
  return { upstream, proxy, send: (options: SendOptions = {}) => send(proxy.port, options) };
}

interface SendOptions {
  readonly method?: string;
  readonly path?: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: Buffer | readonly Buffer[];
}

const send = (port: number, { method = 'GET', path = '/files/1', headers = {}, body }: SendOptions) =>
  new Promise<{ status: number; headers: Record<string, unknown>; body: Buffer }>((resolve, reject) => {
    const request = httpRequest(
      { port, host: '127.0.0.1', method, path, headers: { authorization: 'Bearer A', ...headers }, agent: false },
      (response) => {
        const parts: Buffer[] = [];
        response.on('data', (part: Buffer) => parts.push(part));
        response.on('error', reject);
        response.on('end', () =>
          resolve({ status: response.statusCode ?? 0, headers: response.headers, body: Buffer.concat(parts) }),
        );
      },
    );
    request.on('error', reject);
    if (Array.isArray(body)) for (const part of body) request.write(part);
    request.end(Buffer.isBuffer(body) ? body : undefined);
  });

const readAll = async (stream: ServerHttp2Stream): Promise<Buffer> => {
  const parts: Buffer[] = [];
  for await (const part of stream) parts.push(part as Buffer);
  return Buffer.concat(parts);
};

const digest = (bytes: Buffer): string => createHash('sha256').update(bytes).digest('hex');

describe.each([
  ['plain TCP', false],
  ['TLS', true],
])('an HTTP/2 upstream over %s', (_, isSecure) => {
  test('gets requests with their fields, and its response reaches the client', async () => {
    let seen: IncomingHttpHeaders = {};
    const { send, upstream } = await setUp((stream, headers) => {
      seen = headers;
      stream.respond({ ':status': 201, 'content-type': 'text/plain', 'x-one': 'a' });
      stream.end('hello');
    }, isSecure);
    const reply = await send({ path: '/files/1?a=b', headers: { 'X-Custom': 'Value', connection: 'close' } });
    expect(reply).toMatchObject({ status: 201, headers: { 'content-type': 'text/plain', 'x-one': 'a' } });
    expect(reply.body.toString()).toBe('hello');
    expect(seen).toMatchObject({
      ':method': 'GET',
      ':path': '/files/1?a=b',
      ':scheme': isSecure ? 'https' : 'http',
      ':authority': `127.0.0.1:${upstream.port}`,
      'x-custom': 'Value',
      'x-request-id': expect.any(String) as string,
    });
    expect(seen).not.toHaveProperty('connection');
    expect(seen).not.toHaveProperty('host');
    expect(seen).not.toHaveProperty('authorization');
  });

  test.each([0, 1, 16_384, 16_385, 65_536, 1_000_000])('bodies of %d bytes pass in both directions', async (size) => {
    const { send } = await setUp((stream, headers) => {
      void readAll(stream).then((body) => {
        stream.respond({ ':status': 200, 'x-length': headers['content-length'] ?? 'none' });
        stream.end(body);
      });
    }, isSecure);
    const body = randomBytes(size);
    const reply = await send({ method: 'POST', body });
    expect(reply.headers['x-length']).toBe(String(size));
    expect(digest(reply.body)).toBe(digest(body));
    const parts = Array.from({ length: 10 }, () => randomBytes(Math.ceil(size / 10)));
    const chunked = await send({ method: 'POST', body: parts });
    expect(digest(chunked.body)).toBe(digest(Buffer.concat(parts)));
  });

  test('a hundred requests at a time share a connection', async () => {
    const { send, upstream } = await setUp(
      (stream, headers) => {
        stream.respond({ ':status': 200 });
        setImmediate(() => stream.end(headers[':path']));
      },
      isSecure,
      { upstreamSettings: { connections: 128 } },
    );
    const replies = await Promise.all(Array.from({ length: 100 }, (_, n) => send({ path: `/files/${n}` })));
    expect(replies.map(({ body }) => body.toString())).toEqual(Array.from({ length: 100 }, (_, n) => `/files/${n}`));
    expect(upstream.sessions.size).toBe(1);
  });
});

test('an upstream that allows few streams gets as many connections as it needs', async () => {
  let open = 0;
  let most = 0;
  const { send, upstream } = await setUp(
    (stream, headers) => {
      open += 1;
      most = Math.max(most, open);
      setTimeout(() => {
        open -= 1;
        stream.respond({ ':status': 200 });
        stream.end(headers[':path']);
      }, 50);
    },
    false,
    { upstreamSettings: { connections: 16 } },
    { maxConcurrentStreams: 4 },
  );
  const replies = await Promise.all(Array.from({ length: 40 }, (_, n) => send({ path: `/files/${n}` })));
  expect(replies.map(({ body }) => body.toString())).toEqual(Array.from({ length: 40 }, (_, n) => `/files/${n}`));
  expect(most).toBeLessThanOrEqual(16);
  expect(upstream.sessions.size).toBeLessThanOrEqual(5);
});

test('an upstream that allows no streams is not connected to again and again: the client gets 502', async () => {
  const { send, upstream, proxy } = await setUp(() => {}, false, {}, { maxConcurrentStreams: 0 });
  expect((await send()).status).toBe(502);
  expect(proxy.log.join('')).toContain('allows no requests');
  await until('its connection is closed', () => upstream.sessions.size === 0);
});

test('HEAD, 204 and 304 have no body', async () => {
  const { send } = await setUp((stream, headers) => {
    const status = Number((headers[':path'] ?? '').slice(7)) || 200;
    stream.respond({ ':status': status, ...(status === 200 && { 'content-length': '5' }) }, { endStream: true });
  });
  expect(await send({ method: 'HEAD', path: '/files/200' })).toMatchObject({
    status: 200,
    headers: { 'content-length': '5' },
  });
  expect(await send({ path: '/files/204' })).toMatchObject({ status: 204 });
  expect(await send({ path: '/files/304' })).toMatchObject({ status: 304 });
});

test('a client that disconnects resets the stream, and other streams go on', async () => {
  let codes: number[] = [];
  const { proxy, send } = await setUp((stream, headers) => {
    stream.respond({ ':status': 200 });
    if (headers[':path'] === '/files/slow') stream.write('part');
    else stream.end('fast');
    stream.on('close', () => codes.push(stream.rstCode));
  });
  const request = httpRequest({
    port: proxy.port,
    path: '/files/slow',
    headers: { authorization: 'Bearer A' },
    agent: false,
  });
  const [response] = (await once(request.end(), 'response')) as [NodeJS.ReadableStream];
  await once(response, 'data');
  codes = [];
  request.on('error', () => {});
  request.destroy();
  await until('the stream is reset', () => codes.includes(8));
  expect((await send()).body.toString()).toBe('fast');
});

test('a client that does not read a long response holds a window, and gets all of it when it reads', async () => {
  const body = randomBytes(3_000_000);
  const { proxy } = await setUp((stream) => {
    stream.respond({ ':status': 200 });
    stream.end(body);
  });
  const request = httpRequest({
    port: proxy.port,
    path: '/files/1',
    headers: { authorization: 'Bearer A' },
    agent: false,
  });
  const [response] = (await once(request.end(), 'response')) as [import('node:http').IncomingMessage];
  await new Promise((resolve) => setTimeout(resolve, 300));
  const parts: Buffer[] = [];
  for await (const part of response) parts.push(part as Buffer);
  expect(digest(Buffer.concat(parts))).toBe(digest(body));
});

test('GOAWAY: exchanges in progress end, and the next request uses another connection', async () => {
  const { send, upstream } = await setUp((stream, headers) => {
    stream.respond({ ':status': 200 });
    if (headers[':path'] === '/files/last') {
      stream.session?.goaway(0, stream.id ?? 0);
      setTimeout(() => stream.end('last'), 100);
    } else stream.end('ok');
  });
  expect((await send()).body.toString()).toBe('ok');
  const last = send({ path: '/files/last' });
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect((await send()).body.toString()).toBe('ok');
  expect((await last).body.toString()).toBe('last');
  expect(upstream.sessions.size).toBe(2);
});

test('a request that the upstream refuses is sent again, also with a body', async () => {
  let count = 0;
  const { send } = await setUp((stream) => {
    count += 1;
    if (count % 2 === 1) return stream.close(7);
    stream.respond({ ':status': 200 });
    stream.end(`attempt ${count}`);
  });
  expect((await send()).body.toString()).toBe('attempt 2');
  expect((await send({ method: 'POST', body: Buffer.from('x') })).body.toString()).toBe('attempt 4');
});

test('an upstream that speaks HTTP/1.1 gets 502, and the log says so', async () => {
  const { createServer: createHttp1 } = await import('node:http');
  const server = createHttp1((_, response) => response.end('no')).listen(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(() => void server.close());
  const { port } = server.address() as AddressInfo;
  const proxy = await startProxyHarness({
    upstream: `http://127.0.0.1:${port}`,
    upstreamSettings: { protocol: 'http2' },
  });
  onTestFinished(() => proxy.close());
  expect((await send(proxy.port, {})).status).toBe(502);
  expect(proxy.log.join('')).toContain('responded with HTTP/1.1');
});
