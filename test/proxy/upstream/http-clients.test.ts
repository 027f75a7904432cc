import { createServer } from 'node:net';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type BodyError, RequestBody } from '../../../src/proxy/request-body.ts';
import { ConnectionPool } from '../../../src/proxy/upstream/connection-pool.ts';
import { randomBelow } from '../../fuzz/mutations.ts';
import { type HarnessOptions, type ProxyHarness, startProxyHarness } from '../../support/proxy-harness.ts';
import { connectRaw, isCompleteResponse, rawRequest } from '../../support/raw-client.ts';
import {
  headerValues,
  type RecordingUpstream,
  type Responder,
  startRecordingUpstream,
} from '../../support/recording-upstream.ts';
import { until } from '../../support/serve-process.ts';
import { startTlsProxy, type TlsProxy } from './tls-proxy.ts';

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  while (cleanups.length > 0) await cleanups.pop()?.();
});

const AUTH = 'Host: gate.test\r\nAuthorization: Bearer A\r\n';
const message = (line: string, rest = '\r\n'): string => `${line} HTTP/1.1\r\n${AUTH}${rest}`;

async function setUp(
  options: Partial<HarnessOptions> = {},
): Promise<{ upstream: RecordingUpstream; proxy: ProxyHarness }> {
  const upstream = await startRecordingUpstream();
  const proxy = await startProxyHarness({ upstream: upstream.url, ...options });
  cleanups.push(
    () => upstream.close(),
    () => proxy.close(),
  );
  return { upstream, proxy };
}

describe('plain and TLS upstream connections behave the same', () => {
  let front: TlsProxy;
  let upstream: RecordingUpstream;
  let proxies: readonly ProxyHarness[];

  beforeAll(async () => {
    upstream = await startRecordingUpstream();
    front = await startTlsProxy(upstream.port);
    proxies = await Promise.all(
      [{ upstream: upstream.url }, { upstream: front.url, upstreamSettings: { ca: front.ca } }].map(startProxyHarness),
    );
  });
  afterAll(async () => {
    for (const proxy of proxies) await proxy.close();
    await front.close();
    await upstream.close();
  });
  beforeEach(() => upstream.reset());

  /** Replaces values that depend on the time or the address. */
  const normalize = (text: string): string =>
    text
      .replace(/^(X-Request-Id|Date): [^\r]*/gim, '$1: *')
      .replace(/"request_id":"[^"]*"/g, '"request_id":"*"')
      .replace(/https?:\/\/127\.0\.0\.1:\d+/g, 'http://*');
  const VARYING_FIELDS = new Set(['host', 'traceparent', 'x-request-id', 'x-forwarded-host']);

  const CONTINUE = 'HTTP/1.1 100 Continue\r\n\r\n';
  const sendToBoth = async (sent: string, respond?: Responder): Promise<unknown[]> => {
    const seen: unknown[] = [];
    for (const proxy of proxies) {
      upstream.reset();
      if (respond !== undefined) upstream.respondWith(respond);
      const client = await connectRaw(proxy.port);
      client.send(sent);
      const text = await client.until(
        (all) => isCompleteResponse(all.replace(CONTINUE, ''), sent.startsWith('HEAD')),
        10_000,
      );
      client.destroy();
      const requests = upstream.requests.map(({ method, target, headers, body, trailers }) => ({
        method,
        target,
        headers: headers.filter(([name]) => !VARYING_FIELDS.has(name)).sort(([a], [b]) => (a < b ? -1 : 1)),
        body,
        trailers,
      }));
      seen.push({ text: normalize(text), requests });
    }
    return seen;
  };

  const CHUNKED = 'Transfer-Encoding: chunked\r\n\r\n';
  test.each([
    ['GET', message('GET /files/1?a=b&c=%20')],
    ['GET of length 0', message('GET /files/1', 'Content-Length: 0\r\n\r\n')],
    ['GET with a body', message('GET /files/1', 'Content-Length: 3\r\n\r\nabc')],
    ['HEAD', message('HEAD /files/1')],
    ['DELETE', message('DELETE /files/1')],
    ['OPTIONS', message('OPTIONS /files/1')],
    ['POST without a length', message('POST /files/1')],
    ['POST of length 0', message('POST /files/1', 'Content-Length: 0\r\n\r\n')],
    ['POST', message('POST /files/1', 'Content-Length: 5\r\n\r\nhello')],
    ['a large PUT', message('PUT /files/1', `Content-Length: 300000\r\n\r\n${'x'.repeat(300_000)}`)],
    [
      'chunks, an extension and a trailer',
      message('PATCH /files/1', `${CHUNKED}5;a=b\r\nhello\r\n1\r\n!\r\n0\r\nX-T: 1\r\n\r\n`),
    ],
    [
      'fields of all kinds',
      message(
        'GET /files/1',
        'X-A: \xe4\xff\r\nX-A: b\r\nCookie: a=b; __Host-gatehouse=x\r\nX-Forwarded-For: 1.2.3.4\r\nConnection: keep-alive, X-B\r\nX-B: 1\r\nTE: trailers\r\nAccept:\r\n\r\n',
      ),
    ],
    ['a field that cannot be forwarded', message('GET /files/1', 'X-A: a\x7fb\r\n\r\n')],
    ['HTTP/1.0', `GET /files/1 HTTP/1.0\r\n${AUTH}\r\n`],
    ['Expect: 100-continue', message('POST /files/1', 'Expect: 100-continue\r\nContent-Length: 2\r\n\r\nab')],
    [
      'a body that is too large',
      message('POST /files/1', `${CHUNKED}${`10000\r\n${'y'.repeat(65_536)}\r\n`.repeat(17)}0\r\n\r\n`),
    ],
  ])('request: %s', async (_, sent) => {
    const [plain, tls] = await sendToBoth(sent);
    expect(plain).toEqual(tls);
  });

  const respondWith =
    (text: string, ends = false): Responder =>
    (socket) =>
      void (ends ? socket.end(text, 'latin1') : socket.write(text, 'latin1'));
  test.each<[string, Responder]>([
    ['a length', respondWith('HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: \xe4\r\nX-A: 2\r\n\r\nok')],
    [
      'bytes of all kinds',
      respondWith(
        `HTTP/1.1 200 OK\r\nContent-Length: 256\r\n\r\n${Buffer.from([...Array(256).keys()]).toString('latin1')}`,
      ),
    ],
    ['length 0', respondWith('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n')],
    ['chunks', respondWith('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-T: 1\r\n\r\n')],
    ['no chunk', respondWith('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n')],
    ['HTTP/1.0', respondWith('HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok', true)],
    ['204', respondWith('HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n')],
    ['304', respondWith('HTTP/1.1 304 Not Modified\r\nETag: "a"\r\nContent-Length: 5\r\n\r\n')],
    [
      'interim responses',
      respondWith(
        'HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno',
      ),
    ],
    [
      'a redirect',
      (socket) => void socket.write(`HTTP/1.1 302 Found\r\nLocation: /files/2\r\nContent-Length: 0\r\n\r\n`),
    ],
    [
      'hop-by-hop and reserved fields',
      respondWith(
        'HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: X-A\r\nX-A: 1\r\nKeep-Alive: timeout=9\r\nSet-Cookie: __Host-gatehouse=x\r\nSet-Cookie: a=b\r\nServer: s\r\n\r\nok',
      ),
    ],
    ['an unknown status', respondWith('HTTP/1.1 299 Fine\r\nContent-Length: 2\r\n\r\nok')],
    ['60,000 bytes', respondWith(`HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n${'z'.repeat(60_000)}`)],
    ['nothing', (socket) => void socket.destroy()],
    ['two lengths', respondWith('HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok')],
    ['a folded field', respondWith('HTTP/1.1 200 OK\r\nX-A: a\r\n b\r\nContent-Length: 2\r\n\r\nok')],
    ['a protocol switch', respondWith('HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n')],
    ['another transfer coding', respondWith('HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n')],
  ])('response: %s', async (_, respond) => {
    for (const method of ['GET', 'POST']) {
      const [plain, tls] = await sendToBoth(message(`${method} /files/1`), respond);
      expect(plain).toEqual(tls);
    }
  });

  test.each([
    'HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n01234567890123456789',
    'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n4\r\nrest\r\n0\r\n\r\n',
  ])('U01-U04 %j, truncated anywhere, never looks complete', async (complete) => {
    for (const [proxy, step] of [
      [proxies[0], 1],
      [proxies[1], 9],
    ] as const)
      for (let cut = 1; cut < complete.length; cut += step) {
        upstream.respondWith((socket) => void socket.end(complete.slice(0, cut)));
        const client = await connectRaw(proxy?.port ?? 0);
        client.send(message('GET /files/1'));
        const text = await client.until((all) => isCompleteResponse(all));
        client.destroy();
        if (isCompleteResponse(text)) expect([cut, text.slice(0, 12)]).toEqual([cut, 'HTTP/1.1 502']);
        else expect([cut, client.closeKind()]).not.toEqual([cut, undefined]);
      }
  });
});

test('an idle connection is reused by other clients', async () => {
  const { upstream, proxy } = await setUp({ upstreamSettings: { connections: 1 } });
  for (let count = 0; count < 4; count += 1)
    expect((await rawRequest(proxy.port, message('GET /files/1'))).status).toBe(200);
  expect(upstream.requests.map(({ connection }) => connection)).toEqual([1, 1, 1, 1]);
});

test('H33 with faults, requests in different framings on the same connections: no response reaches another client', {
  timeout: 300_000,
}, async () => {
  const COUNT = Number(process.env['NONCES'] ?? 1_500);
  const randomInt = randomBelow(34);
  const { upstream, proxy } = await setUp({
    upstreamSettings: { connections: 5, maxPending: 10_000 },
  });
  let faults = 0;
  upstream.respondWith((socket, { target, body }) => {
    const text = `${target}|${body}|`;
    const complete = `HTTP/1.1 200 OK\r\nContent-Length: ${text.length}\r\n\r\n${text}`;
    const injectedFaults: readonly (() => void)[] = [
      () => void socket.end(),
      () => void socket.resetAndDestroy(),
      () => void socket.end(complete.slice(0, -3)),
      () => void socket.write(`${complete}HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil`),
      () => void socket.write(`${complete}x`),
      () => void socket.write(complete, () => socket.end()),
    ];
    const inject = injectedFaults[randomInt(24)];
    if (inject === undefined) return void socket.write(complete);
    faults += 1;
    return inject();
  });
  let next = 0;
  let good = 0;
  const swapped: string[] = [];
  const runClient = async (_: unknown, worker: number): Promise<void> => {
    const more = worker % 2 === 0 ? 'TE: trailers\r\n' : '';
    let client = await connectRaw(proxy.port);
    for (let nonce = next++; nonce < COUNT; nonce = next++) {
      const seen = client.text().length;
      const body = nonce % 3 === 0 ? `b${nonce}` : '';
      const framed =
        worker % 4 === 0
          ? `Transfer-Encoding: chunked\r\n\r\n${body.length.toString(16)}\r\n${body}\r\n0\r\n\r\n`
          : `Content-Length: ${body.length}\r\n\r\n${body}`;
      client.send(
        body === '' ? message(`GET /files/n${nonce}`, `${more}\r\n`) : message(`POST /files/n${nonce}`, more + framed),
      );
      // Some clients disconnect before the response.
      const disconnects = nonce % 17 === 0;
      const text = disconnects
        ? ''
        : (await client.until((all) => isCompleteResponse(all.slice(seen)), 30_000)).slice(seen);
      if (text.startsWith('HTTP/1.1 200') && isCompleteResponse(text)) {
        if (text.includes(`/files/n${nonce}|${body}|`) && !text.endsWith('evil')) good += 1;
        else swapped.push(`${nonce}: ${text.slice(-200)}`);
      }
      if (!disconnects && client.closeKind() === undefined) continue;
      client.destroy();
      client = await connectRaw(proxy.port);
    }
    client.destroy();
  };
  await Promise.all(Array.from({ length: 24 }, runClient));
  expect(swapped).toEqual([]);
  expect(good).toBeGreaterThan(COUNT / 2);
  expect(faults).toBeGreaterThan(COUNT / 8);
});

describe('an incomplete body', () => {
  test.each([
    ['with a length', 'Content-Length: 10\r\n\r\nhalf', 'half'],
    ['in chunks', 'Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n', 'half'],
    ['before any of it', 'Content-Length: 10\r\n\r\n', 'POST'],
  ])('%s: its upstream connection is not reused', async (_, rest, seen) => {
    const { upstream, proxy } = await setUp({ upstreamSettings: { connections: 1, bodyBuffer: 0 } });
    expect((await rawRequest(proxy.port, message('GET /files/1'))).status).toBe(200);
    const client = await connectRaw(proxy.port);
    client.send(message('POST /files/2', rest));
    await until(
      'the upstream has the beginning',
      () => upstream.bytes().includes('POST') && upstream.bytes().includes(seen),
    );
    client.destroy();
    await until('the upstream connection is closed', () => upstream.openConnections() === 0);
    const next = await rawRequest(proxy.port, message('GET /files/3'));
    expect([next.status, next.body]).toEqual([200, 'GET /files/3']);
    expect(upstream.requests.map(({ target, connection }) => `${target} ${connection}`)).toEqual([
      '/files/1 1',
      '/files/3 2',
    ]);
  });

  test('that its client sends too slowly is 408, and the connection is not reused', async () => {
    const { upstream, proxy } = await setUp({
      upstreamSettings: { connections: 1, timeouts: { connect: 1, headers: 5, idle: 1 } },
    });
    const response = await rawRequest(proxy.port, message('POST /files/1', 'Content-Length: 10\r\n\r\nhalf'));
    expect(response.status).toBe(408);
    await until('the upstream connection is closed', () => upstream.openConnections() === 0);
    expect((await rawRequest(proxy.port, message('GET /files/2'))).status).toBe(200);
  });

  test('that the upstream does not read is 504', async () => {
    const stalledServer = createServer((socket) => void socket.on('error', () => {}).pause());
    await new Promise<void>((resolve) => {
      stalledServer.listen(0, '127.0.0.1', resolve);
    });
    cleanups.push(() => void stalledServer.close());
    const { port } = stalledServer.address() as { port: number };
    const proxy = await startProxyHarness({
      upstream: `http://127.0.0.1:${port}`,
      maxBodyBytes: 100_000_000,
      upstreamSettings: { timeouts: { connect: 1, headers: 5, idle: 1 } },
    });
    cleanups.push(() => proxy.close());
    const client = await connectRaw(proxy.port);
    cleanups.push(() => client.destroy());
    client.send(message('POST /files/1', `Content-Length: 50000000\r\n\r\n`));
    const part = 'x'.repeat(65_536);
    for (let sent = 0; sent < 400; sent += 1) client.send(part);
    expect(await client.until((text) => text.includes('\r\n\r\n'), 10_000)).toMatch(/^HTTP\/1\.1 504/);
  });

  /** Impossible over HTTP/1.1, and refused earlier over HTTP/2; this tests the second check. */
  test.each([
    ['longer', ['hel', 'lo!'], 'hel'],
    ['longer at once', ['hello!'], ''],
    ['shorter', ['hel'], 'hel'],
  ])('%s than its length is reported as invalid, and nothing beyond the length is sent', async (_, parts, sent) => {
    const upstream = await startRecordingUpstream();
    cleanups.push(() => upstream.close());
    const tls = { serverName: undefined, secureContext: undefined };
    const pool = new ConnectionPool(upstream.url, tls, 1, () => {});
    cleanups.push(() => pool.close());
    const connection = pool.acquire(true);
    const errors: string[] = [];
    const body = new RequestBody({ isComplete: false, pause() {}, resume() {} }, 5, 100);
    body.start(
      {
        onBodyBuffered() {},
        onBodyProgress: () => void errors.push(body.isSent ? 'complete' : 'more'),
        onBodyError(error: BodyError) {
          errors.push(error.kind);
          body.stop();
        },
      },
      undefined,
    );
    const failTest = (): never => {
      throw new Error('unexpected response');
    };
    connection.assign(
      {
        onConnected: () => body.flow(true),
        onDrain() {},
        onHead: failTest,
        onData: failTest,
        onReadEnd: failTest,
        onEnd: failTest,
        onError() {},
        onInternalError: failTest,
      },
      false,
      performance.now(),
    );
    connection.sendHead({ method: 'POST', path: '/', fields: '', acceptsTrailers: false }, body.framing);
    body.begin(connection);
    for (const part of parts) body.push(Buffer.from(part));
    body.end();
    await until('the error is reported', () => errors.includes('client_disconnected'));
    await until('the upstream has the head', () => upstream.bytes().includes('\r\n\r\n'));
    expect(errors).not.toContain('complete');
    expect(upstream.bytes().split('\r\n\r\n')[1] ?? '').toBe(sent);
  });
});

describe('a desynchronized connection is not reused', () => {
  const getUsedConnections = async (first: string, more: string): Promise<readonly number[]> => {
    const usedConnections: number[] = [];
    let count = 0;
    const server = createServer((socket) => {
      count += 1;
      const connection = count;
      socket
        .on('error', () => {})
        .on('data', (part: Buffer) => {
          if (part.includes(' HTTP/1.1\r\n')) {
            usedConnections.push(connection);
            socket.write(`HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok${usedConnections.length === 1 ? more : ''}`);
          }
        });
    });
    await new Promise<void>((resolve) => {
      server.listen(0, '127.0.0.1', resolve);
    });
    cleanups.push(() => void server.close());
    const { port } = server.address() as { port: number };
    const upstreamSettings = { connections: 1, bodyBuffer: 0 };
    const proxy = await startProxyHarness({
      upstream: `http://127.0.0.1:${port}`,
      upstreamSettings,
    });
    cleanups.push(() => proxy.close());
    const client = await connectRaw(proxy.port);
    cleanups.push(() => client.destroy());
    client.send(first);
    await client.until((text) => isCompleteResponse(text));
    expect((await rawRequest(proxy.port, message('GET /files/2'))).status).toBe(200);
    return usedConnections;
  };

  test('a connection is reused after a complete response', async () => {
    expect(await getUsedConnections(message('GET /files/1'), '')).toEqual([1, 1]);
    expect(await getUsedConnections(message('POST /files/1', 'Content-Length: 2\r\n\r\nab'), '')).toEqual([1, 1]);
  });

  test('a connection is not reused after a response to an incomplete request', async () => {
    expect(await getUsedConnections(message('POST /files/1', 'Content-Length: 9\r\n\r\nhalf'), '')).toEqual([1, 2]);
    const chunks = 'Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n';
    expect(await getUsedConnections(message('POST /files/1', chunks), '')).toEqual([1, 2]);
  });

  test('a connection with bytes after the response is not reused', async () => {
    expect(await getUsedConnections(message('GET /files/1'), 'x')).toEqual([1, 2]);
  });
});

test('a chunked body is forwarded as it arrives, and its trailers after it', async () => {
  const { upstream, proxy } = await setUp();
  const client = await connectRaw(proxy.port);
  client.send(message('POST /files/1', 'Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n'));
  await until('the upstream has the first chunk', () => upstream.bytes().includes('\r\n\r\n5\r\nhello\r\n'));
  client.send('6\r\n world\r\n0\r\nX-Trailer: 1\r\n\r\n');
  await client.until((text) => isCompleteResponse(text));
  client.destroy();
  expect(upstream.requests.map(({ body, trailers }) => [body, trailers])).toEqual([['hello world', ['X-Trailer: 1']]]);
  expect(headerValues(upstream.requests[0], 'transfer-encoding')).toEqual(['chunked']);
});

test('requests that arrive in one segment with their bodies are forwarded one by one', async () => {
  const { upstream, proxy } = await setUp({ upstreamSettings: { connections: 1 } });
  const client = await connectRaw(proxy.port);
  const post = message('POST /files/1', 'Content-Length: 5\r\n\r\nhello');
  client.send(post + post + message('GET /files/2'));
  await client.until((text) => text.endsWith('GET /files/2'));
  client.destroy();
  expect(upstream.requests.map(({ method, body }) => `${method} ${body}`)).toEqual([
    'POST hello',
    'POST hello',
    'GET ',
  ]);
});

test.each([
  ['GET', '\r\n'],
  ['POST', 'Content-Length: 2\r\n\r\nab'],
])('the upstream %s is aborted when its client disconnects', async (method, rest) => {
  const { upstream, proxy } = await setUp();
  upstream.respondWith((socket, { target }) => {
    if (target === '/files/started') socket.write('HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf');
  });
  for (const target of ['/files/silent', '/files/started']) {
    const client = await connectRaw(proxy.port);
    client.send(message(`${method} ${target}`, rest));
    await until('the upstream has the request', () => upstream.requests.some((request) => request.target === target));
    if (target === '/files/started') await client.until((text) => text.endsWith('half'));
    client.destroy();
    await until('the upstream connection is closed', () => upstream.openConnections() === 0);
  }
});
