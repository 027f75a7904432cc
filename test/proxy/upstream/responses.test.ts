import { createHash, randomBytes } from 'node:crypto';
import { connect, createServer, type Socket } from 'node:net';
import { afterEach, describe, expect, test } from 'vitest';
import { ChunkedBodyReader } from '../../../src/http/chunk-reader.ts';
import { parseResponseHead } from '../../../src/proxy/upstream/response-head.ts';
import { type HarnessOptions, type ProxyHarness, startProxyHarness } from '../../support/proxy-harness.ts';
import { connectRaw, isCompleteResponse, parseRawResponse, rawRequest } from '../../support/raw-client.ts';
import {
  type RecordingUpstream,
  type Responder,
  respondOk,
  startRecordingUpstream,
} from '../../support/recording-upstream.ts';
import { until } from '../../support/serve-process.ts';

/** Ambiguous framing of a response is rejected, and each response reaches only the client that requested it. */
const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  while (cleanups.length > 0) await cleanups.pop()?.();
});

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

const AUTH = 'Host: gate.test\r\nAuthorization: Bearer A\r\n';
const get = (path = '/files/1'): string => `GET ${path} HTTP/1.1\r\n${AUTH}\r\n`;

describe('the response head', () => {
  const readFraming = (fields: string, toHead = false) => {
    const head = parseResponseHead(`HTTP/1.1 200 OK${fields && `\r\n${fields}`}`, toHead);
    return typeof head === 'string' ? head : head.framing;
  };
  test.each([
    ['', 'close'],
    ['Content-Length: 0', 'length'],
    ['content-length:5', 'length'],
    ['Transfer-Encoding: Chunked', 'chunked'],
    ['X-A:\tb\xe4 ', 'close'],
  ])('%j is framed by %s', (fields, framing) => expect(readFraming(fields)).toBe(framing));

  test.each([
    'Content-Length: 5\r\nContent-Length: 5',
    'Content-Length: 5, 5',
    'Content-Length: +5',
    'Content-Length: 0x5',
    'Content-Length: ',
    'Content-Length: 1234567890123456',
    'Content-Length: 5\r\nTransfer-Encoding: chunked',
    'Transfer-Encoding: gzip, chunked',
    'Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked',
    'Transfer-Encoding: identity',
    'Transfer-Encoding : chunked',
    'X-A: b\r\n c',
    'X-A: b\x00',
    'X-A: b\x7f',
    'X-A b',
    ': b',
    'X-A: b\nX-B: c',
    'X-A: b\rX-B: c',
  ])('%j is not a response', (fields) => expect(readFraming(fields)).toMatch(/ /));

  test.each([
    'HTTP/1.2 200 OK',
    'HTTP/2 200',
    'http/1.1 200 OK',
    'HTTP/1.1  200 OK',
    'HTTP/1.1 20 OK',
    'HTTP/1.1 2000',
    'HTTP/1.1 099',
    ' HTTP/1.1 200 OK',
    '',
  ])('%j is not a status line', (line) => expect(parseResponseHead(line, false)).toBe('a malformed status line'));

  test('HEAD, 204 and 304 have no body, whatever their header fields', () => {
    expect(readFraming('Content-Length: 5', true)).toBe('none');
    for (const status of [204, 304]) {
      const head = parseResponseHead(`HTTP/1.1 ${status} X\r\nContent-Length: 5`, false);
      expect(typeof head === 'string' ? head : [head.framing, head.length]).toEqual(['none', 0]);
    }
  });
});

describe('a chunked response', () => {
  const BODY = '5;a=b\r\nhello\r\n01\r\n \r\n5\r\nworld\r\n0\r\nX-Trailer: 1\r\n\r\n';
  const readInPieces = (text: string, size: number): string => {
    const reader = new ChunkedBodyReader();
    const bytes = Buffer.from(text, 'latin1');
    let body = '';
    for (let at = 0; at < bytes.length; at += size) {
      const progress = reader.read(bytes, at, Math.min(bytes.length, at + size), (part, from, end) => {
        body += part.toString('latin1', from, end);
      });
      if (progress !== 'more') return `${body}|${progress}|${bytes.length - reader.offset}`;
    }
    return `${body}|more`;
  };
  test('is parsed the same in pieces of any size, and not beyond its end', () => {
    for (let size = 1; size <= BODY.length; size += 1)
      expect([size, readInPieces(BODY, size)]).toEqual([size, 'hello world|complete|0']);
    expect(readInPieces(`${BODY}HTTP/1.1`, 1_000)).toBe('hello world|complete|8');
  });

  const MALFORMED = [
    '+5\r\nhello\r\n0\r\n\r\n',
    '0x5\r\nhello\r\n0\r\n\r\n',
    '5 \r\nhello\r\n0\r\n\r\n',
    '5\nhello\r\n0\r\n\r\n',
    '5\r\nhello0\r\n\r\n',
    '5\r\nhello\n0\r\n\r\n',
    '5;\x01\r\nhello\r\n0\r\n\r\n',
    '123456789\r\n',
    '\r\n',
    `5;${'a'.repeat(2_000)}\r\nhello\r\n0\r\n\r\n`,
    '0\r\nno field\r\n\r\n',
    '0\r\n\n',
    `0\r\n${'X-A: b\r\n'.repeat(4_000)}\r\n`,
  ];
  test.each(MALFORMED.map((text) => [text.slice(0, 40), text]))('%j is malformed', (_, text) => {
    for (const size of [1, 3, 100_000]) expect(readInPieces(text, size)).toMatch(/\|malformed\|/);
  });
});

describe('an upstream connection is reused', () => {
  const countConnections = async (
    respond: Responder,
    message = get(),
  ): Promise<{ connections: number; status: number }> => {
    const { upstream, proxy } = await setUp();
    upstream.respondWith(respond);
    const { status } = await rawRequest(proxy.port, message);
    upstream.respondWith(respondOk);
    expect((await rawRequest(proxy.port, get('/files/2'))).body).toBe('GET /files/2');
    return { connections: upstream.connectionCount(), status };
  };
  test.each<[string, Responder]>([
    ['a length', respondOk],
    [
      'chunks',
      (socket) => void socket.write('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n'),
    ],
    ['no body', (socket) => void socket.write('HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n')],
    [
      'interim responses',
      (socket) =>
        void socket.write('HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok'),
    ],
  ])('after %s', async (_, respond) => expect((await countConnections(respond)).connections).toBe(1));

  test.each<[string, Responder]>([
    [
      'Connection: close',
      (socket) => void socket.write('HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 2\r\n\r\nok'),
    ],
    ['HTTP/1.0', (socket) => void socket.write('HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok')],
    ['one extra byte', (socket) => void socket.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok!')],
    [
      'a second response',
      (socket) =>
        void socket.write(
          'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil',
        ),
    ],
    [
      'bytes after the last chunk',
      (socket) => void socket.write('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n!'),
    ],
    ['a response delimited by the connection close', (socket) => void socket.end('HTTP/1.1 200 OK\r\n\r\nok')],
  ])('never after %s', async (_, respond) =>
    expect(await countConnections(respond)).toEqual({ connections: 2, status: 200 }),
  );

  test('never after HEAD, to which some servers send a body', async () => {
    const message = get().replace('GET', 'HEAD');
    expect(
      (await countConnections((socket) => void socket.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok'), message))
        .connections,
    ).toBe(2);
  });

  test('never after unsolicited bytes', async () => {
    const { upstream, proxy } = await setUp();
    await rawRequest(proxy.port, get());
    upstream.writeToAll('HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil');
    await until('the connection is closed', () => upstream.openConnections() === 0);
    expect((await rawRequest(proxy.port, get('/files/2'))).body).toBe('GET /files/2');
  });

  test('never after a response that arrived before the request was complete', async () => {
    const { proxy } = await setUp();
    const early = createServer((socket) => {
      socket.on('error', () => {});
      socket.once('data', () => socket.write('HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno'));
    });
    await new Promise<void>((resolve) => early.listen(0, '127.0.0.1', resolve));
    const { port } = early.address() as { port: number };
    const otherProxy = await startProxyHarness({
      upstream: `http://127.0.0.1:${port}`,
      upstreamSettings: { bodyBuffer: 0 },
    });
    cleanups.push(
      () => otherProxy.close(),
      () => early.close(),
    );
    const client = await connectRaw(otherProxy.port);
    client.send(`POST /files/1 HTTP/1.1\r\n${AUTH}Content-Length: 100000\r\n\r\nabc`);
    const text = await client.until((all) => isCompleteResponse(all));
    expect(parseRawResponse(text)).toMatchObject({ status: 413, body: 'no' });
    expect(text).toMatch(/\r\nConnection: close\r\n/);
    client.send('x'.repeat(99_997));
    await client.closed();
    expect((await rawRequest(proxy.port, get())).status).toBe(200);
  });
});

test('chunk extensions of a response and trailers that no upstream may set are dropped, and chunks are rewritten', async () => {
  const { upstream, proxy } = await setUp();
  upstream.respondWith(
    (socket) =>
      void socket.write(
        'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=evil\r\nhello\r\n0\r\nX-Forwarded-User: evil\r\n\r\n',
      ),
  );
  const { body } = await rawRequest(proxy.port, get().replace('\r\n', '\r\nTE: trailers\r\n'));
  expect(body).toBe('5\r\nhello\r\n0\r\n\r\n');
});

describe('backpressure: a peer that does not read stops the sender', () => {
  const HUGE = 200 * 1_048_576;
  /** Both ends run in this process: a count that does not change during many round trips is blocked. */
  const waitUntilBlocked = async (proxy: ProxyHarness, count: () => number): Promise<number> => {
    let before = count();
    for (let unchanged = 0; unchanged < 20; unchanged += 1) {
      expect((await rawRequest(proxy.port, 'GET /files/1 HTTP/1.1\r\nHost: a\r\n\r\n')).status).toBe(401);
      if (count() !== before) unchanged = 0;
      before = count();
    }
    return before;
  };
  const startProxyTo = async (onSocket: (socket: Socket) => void): Promise<ProxyHarness> => {
    const server = createServer((socket) => onSocket(socket.on('error', () => {})));
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    const { port } = server.address() as { port: number };
    const proxy = await startProxyHarness({
      upstream: `http://127.0.0.1:${port}`,
      maxBodyBytes: HUGE,
      upstreamSettings: { timeouts: { connect: 5, headers: 60, idle: 60 } },
    });
    cleanups.push(
      () => server.close(),
      () => proxy.close(),
    );
    return proxy;
  };
  const part = randomBytes(65_536);

  test('an upstream', { timeout: 60_000 }, async () => {
    let upstreamSocket: Socket | undefined;
    const got = createHash('sha256');
    let bytes = 0;
    const proxy = await startProxyTo((socket) => {
      upstreamSocket = socket.pause();
      socket.on('data', (data: Buffer) => {
        const body = bytes === 0 ? data.subarray(data.indexOf('\r\n\r\n') + 4) : data;
        bytes += data.length;
        got.update(body);
      });
      // The listener alone does not resume the socket, which was paused explicitly.
    });
    const client = (await connectRaw(proxy.port)).socket;
    cleanups.push(() => client.destroy());
    const SIZE = 48 * 1_048_576;
    const sentDigest = createHash('sha256');
    client.write(`POST /files/1 HTTP/1.1\r\n${AUTH}Content-Length: ${SIZE}\r\n\r\n`);
    let sent = 0;
    const pump = (): void => {
      while (sent < SIZE) {
        sent += part.length;
        sentDigest.update(part);
        if (!client.write(part)) return void client.once('drain', pump);
      }
    };
    pump();
    expect(await waitUntilBlocked(proxy, () => sent)).toBeLessThan(SIZE / 2);
    upstreamSocket?.resume();
    await until('the upstream has the whole body', () => bytes > SIZE, 30);
    expect(got.digest('hex')).toBe(sentDigest.digest('hex'));
    upstreamSocket?.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok');
  });

  test.each(['Content-Length: 209715200', 'Transfer-Encoding: chunked', 'X-Until: the end'])(
    'a client, with %s',
    { timeout: 60_000 },
    async (framing) => {
      let sent = 0;
      const isChunked = framing.startsWith('Transfer');
      const proxy = await startProxyTo((socket) => {
        socket.once('data', () => {
          socket.write(`HTTP/1.1 200 OK\r\n${framing}\r\n\r\n`);
          const pump = (): void => {
            while (sent < HUGE) {
              sent += part.length;
              if (isChunked) socket.write('10000\r\n');
              const more = socket.write(part);
              if (isChunked) socket.write('\r\n');
              if (!more) return void socket.once('drain', pump);
            }
          };
          pump();
        });
      });
      const client = connect(proxy.port, '127.0.0.1');
      cleanups.push(() => client.destroy());
      client.write(get());
      await until('the response has started', () => sent > 0);
      expect(await waitUntilBlocked(proxy, () => sent)).toBeLessThan(HUGE / 4);
      const before = sent;
      let bytes = 0;
      client.on('data', (data: Buffer) => {
        bytes += data.length;
      });
      await until('the transfer continues', () => bytes > before + 4 * 1_048_576, 30);
    },
  );
});
