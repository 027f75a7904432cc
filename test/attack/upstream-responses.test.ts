import type { Socket } from 'node:net';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { eventLoopTurns } from '../support/event-loop-turns.ts';
import { type ProxyHarness, rule, startProxyHarness } from '../support/proxy-harness.ts';
import { type RawResponse, rawRequest } from '../support/raw-client.ts';
import { type RecordingUpstream, startRecordingUpstream } from '../support/recording-upstream.ts';
import { until } from '../support/serve-process.ts';
import { testExtraResponses, testPooledEchoes, testTruncated } from './upstream-responses.ts';

/** Faulty and malicious upstreams: rows U and H33. */

let upstream: RecordingUpstream;
let proxy: ProxyHarness;

beforeAll(async () => {
  upstream = await startRecordingUpstream();
  proxy = await startProxyHarness({
    upstream: upstream.url,
    publicUrl: 'https://api.example.test',
    rules: [
      rule('/cut/*/**', 'files:read', { stripPrefix: '/cut/*' }),
      rule('/hosted/**', 'files:read', { host: 'other.test' }),
      rule('/untouched/**', 'files:read', { upstream: 'untouched' }),
      rule('/files/**', 'files:read'),
    ],
    extraUpstreams: {
      untouched: {
        targets: [upstream.url],
        timeouts: { connect: 1, headers: 5, idle: 5 },
        connections: 2,
        rewriteLocation: false,
      },
    },
  });
});
afterAll(async () => {
  await proxy.close();
  await upstream.close();
});
beforeEach(() => upstream.reset());

const get = (path: string, method = 'GET', host = 'gate.test'): string =>
  `${method} ${path} HTTP/1.1\r\nHost: ${host}\r\nAuthorization: Bearer A\r\n\r\n`;
const send = (path = '/files/1', method = 'GET', host?: string): Promise<RawResponse> =>
  rawRequest(proxy.port, get(path, method, host));

testTruncated({ upstream: () => upstream, proxy: () => proxy }, 200);

test('H11 a request without header fields is rejected, and the next one on another connection is served', async () => {
  expect((await rawRequest(proxy.port, 'GET /files/1 HTTP/1.1\r\n\r\n')).status).toBe(400);
  expect(upstream.requests).toEqual([]);
  expect((await send('/files/next')).status).toBe(200);
});

describe('malformed responses', () => {
  test.each([
    [
      'U06 a length and a transfer coding',
      'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
    ],
    ['U06 two lengths', 'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!'],
    ['U07 garbage', 'SSH-2.0-OpenSSH\r\n\r\n'],
    ['U07 a status of four digits', 'HTTP/1.1 1000 OK\r\nContent-Length: 0\r\n\r\n'],
    ['U07 a head of 20 KB', `HTTP/1.1 200 OK\r\nX: ${'x'.repeat(20_000)}\r\nContent-Length: 0\r\n\r\n`],
    ['U07 a folded line', 'HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n'],
    ['U07 a name with a space', 'HTTP/1.1 200 OK\r\nX : a\r\nContent-Length: 0\r\n\r\n'],
    [
      'U09 an upgrade that was not requested',
      'HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n',
    ],
    [
      'U08 21 interim responses',
      `${'HTTP/1.1 102 Processing\r\n\r\n'.repeat(21)}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok`,
    ],
    [
      'U08 21 100 Continue responses',
      `${'HTTP/1.1 100 Continue\r\n\r\n'.repeat(21)}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok`,
    ],
    ['U08 an endless 100 Continue', `HTTP/1.1 100 Continue\r\nX: ${'x'.repeat(20_000)}`],
    ['U08 10,000 interim responses', 'HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n'.repeat(10_000)],
  ])('%s: 502, and the next request uses a new connection', async (_, bytes) => {
    upstream.respondWith((socket) => void socket.write(bytes));
    expect((await send()).status).toBe(502);
    upstream.reset();
    expect((await send('/files/next')).body).toBe('GET /files/next');
  });

  test('U08 twenty interim responses are accepted, and none of them reaches the client', async () => {
    const interim = 'HTTP/1.1 103 Early Hints\r\nLink: </secret>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n'.repeat(10);
    upstream.respondWith((socket) => void socket.write(`${interim}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok`));
    const { status, head, body } = await send();
    expect([status, body]).toEqual([200, 'ok']);
    expect(head).not.toContain('secret');
  });
});

describe('U08 100 Continue that was not requested', () => {
  const OK = 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok';
  const CONTINUE = 'HTTP/1.1 100 Continue\r\n\r\n';
  const writeInParts = async (socket: Socket, parts: readonly string[]): Promise<void> => {
    for (const part of parts) {
      socket.write(part);
      // So that each part arrives in a separate read.
      await eventLoopTurns(2);
    }
  };
  test.each([
    ['one', [CONTINUE + OK]],
    ['twenty, with fields', ['HTTP/1.1 100 Continue\r\nX-Secret: 1\r\n\r\n'.repeat(20) + OK]],
    [
      'among other interim responses',
      [`HTTP/1.1 102 Processing\r\n\r\n${CONTINUE}HTTP/1.1 103 Early Hints\r\n\r\n`, OK],
    ],
    ['without a reason', ['HTTP/1.1 100\r\n\r\n', OK]],
    ['byte by byte', (CONTINUE + CONTINUE + OK).split('')],
  ])(
    'U08 %s: the final response reaches the client, also for the next request on the same connection',
    async (_, parts) => {
      upstream.respondWith((socket) => void writeInParts(socket, parts));
      for (let count = 0; count < 3; count += 1) {
        const { status, head, body } = await send();
        expect([status, body]).toEqual([200, 'ok']);
        expect(head).not.toContain('Secret');
      }
    },
  );

  test('U08 to a request with a body', async () => {
    upstream.respondWith((socket) => void socket.write(CONTINUE + OK));
    const { status, body } = await rawRequest(
      proxy.port,
      'PUT /files/1 HTTP/1.1\r\nHost: gate.test\r\nAuthorization: Bearer A\r\nContent-Length: 5\r\n\r\nhello',
    );
    expect([status, body]).toEqual([200, 'ok']);
  });

  test('U08 within a body is part of the body', async () => {
    upstream.respondWith(
      (socket) => void writeInParts(socket, ['HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n', CONTINUE.repeat(2)]),
    );
    expect((await send()).body).toBe(CONTINUE.repeat(2));
  });

  test('U08 on an idle connection closes that connection, and the next response is not read from it', async () => {
    const used: Socket[] = [];
    upstream.respondWith((socket) => {
      used.push(socket);
      socket.write(OK);
    });
    expect((await send()).body).toBe('ok');
    used[0]?.write(`${CONTINUE}HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\npoisoned`);
    await until('the gateway closes the connection', () => used[0]?.destroyed);
    expect((await send()).body).toBe('ok');
    expect(used).toHaveLength(2);
  });
});

describe('U10 more than one response to a request', () => {
  const harness = { upstream: () => upstream, proxy: () => proxy };
  testExtraResponses(harness, 400);
  testPooledEchoes(harness, 400);
});

describe('U14 redirects', () => {
  const getRedirect = async (location: string, path = '/files/1', host?: string): Promise<string | undefined> => {
    upstream.respondWith(
      (socket) => void socket.write(`HTTP/1.1 302 Found\r\nLocation: ${location}\r\nContent-Length: 0\r\n\r\n`),
    );
    const { status, head } = await send(path, 'GET', host);
    expect(status).toBe(302);
    return /^location: (.*)$/im.exec(head)?.[1];
  };

  test('to the upstream itself are rewritten to the public URL', async () => {
    const { port, url } = upstream;
    expect(await getRedirect(`${url}/a?b#c`)).toBe('https://api.example.test/a?b#c');
    expect(await getRedirect(`HTTP://127.0.0.1:${port}/a`)).toBe('https://api.example.test/a');
    expect(await getRedirect(`//127.0.0.1:${port}/a`)).toBe('https://api.example.test/a');
    expect(await getRedirect(url)).toBe('https://api.example.test/');
    expect(await getRedirect(`${url}?q`)).toBe('https://api.example.test/?q');
  });

  test('get the stripped prefix added again', async () => {
    const { url } = upstream;
    expect(await getRedirect(`${url}/a`, '/cut/x/1')).toBe('https://api.example.test/cut/x/a');
    expect(await getRedirect('/a', '/cut/x/1')).toBe('/cut/x/a');
    expect(await getRedirect(url, '/cut/x/1')).toBe('https://api.example.test/cut/x');
    expect(await getRedirect('a', '/cut/x/1')).toBe('a');
  });

  test('on a route with its own host keep that host', async () => {
    expect(await getRedirect(`${upstream.url}/a`, '/hosted/1', 'other.test:8443')).toBe('https://other.test:8443/a');
  });

  test.each([
    '/a',
    'a?b',
    'https://elsewhere.test/a',
    'http://127.0.0.1:1/a',
    'http://127.0.0.1/a',
    'http://user@127.0.0.1/a',
    '//elsewhere.test/a',
    '/\\elsewhere.test',
  ])('to other origins or relative URLs are forwarded unchanged: %s', async (location) => {
    expect(await getRedirect(location)).toBe(location);
  });

  test('are not rewritten where rewriteLocation is off', async () => {
    expect(await getRedirect(`${upstream.url}/a`, '/untouched/1')).toBe(`${upstream.url}/a`);
  });

  test('U16 are never followed', async () => {
    await getRedirect(`${upstream.url}/files/admin`);
    expect(upstream.requests).toHaveLength(1);
  });
});

test('X11 a compressed response, such as a decompression bomb, is forwarded unchanged without decompression', async () => {
  const bomb = gzipSync(Buffer.alloc(64 * 1_048_576));
  const before = process.memoryUsage().arrayBuffers;
  upstream.respondWith((socket) => {
    socket.write(`HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: ${bomb.length}\r\n\r\n`);
    socket.write(bomb);
  });
  const { head, body } = await send();
  expect(head).toMatch(/content-encoding: gzip/i);
  expect(Buffer.from(body, 'latin1').equals(bomb)).toBe(true);
  expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(16 * 1_048_576);
});
