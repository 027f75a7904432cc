import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import type { AddressInfo, Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createServer as createTlsServer } from 'node:tls';
import { afterEach, describe, expect, test } from 'vitest';
import { createCa, issueServer } from '../../support/pki.ts';
import { type ProxyHarness, startProxyHarness } from '../../support/proxy-harness.ts';
import { rawRequest } from '../../support/raw-client.ts';
import {
  headerValues,
  type RecordingUpstream,
  type Responder,
  respondOk,
  startRecordingUpstream,
} from '../../support/recording-upstream.ts';

/** U05: requests that are retried, and requests that never are. */
const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  while (cleanups.length > 0) await cleanups.pop()?.();
});

async function setUp(): Promise<{ upstream: RecordingUpstream; proxy: ProxyHarness }> {
  const upstream = await startRecordingUpstream();
  const upstreamSettings = { connections: 1 };
  const proxy = await startProxyHarness({ upstream: upstream.url, upstreamSettings });
  cleanups.push(
    () => upstream.close(),
    () => proxy.close(),
  );
  return { upstream, proxy };
}

const message = (method: string, more = '\r\n'): string =>
  `${method} /files/1 HTTP/1.1\r\nHost: gate.test\r\nAuthorization: Bearer A\r\n${more}`;

/** The first connection responds once; every later request on it fails with `fail`. */
function respondOnceThen(upstream: RecordingUpstream, fail: Responder): void {
  let responded = 0;
  upstream.respondWith((socket, request) => {
    if (request.connection > 1 || responded++ === 0) respondOk(socket, request);
    else fail(socket, request);
  });
}

const FAILURES: readonly (readonly [string, (socket: Socket) => void])[] = [
  ['closed', (socket) => void socket.end()],
  ['reset', (socket) => void socket.resetAndDestroy()],
];

const NO_BODY = 'Content-Length: 0\r\n\r\n';
const RETRIED: readonly (readonly [string, string])[] = [
  ['GET', '\r\n'],
  ['OPTIONS', '\r\n'],
  ['DELETE', '\r\n'],
  ['PUT', '\r\n'],
  ['PUT', NO_BODY],
];
const BODY = 'Content-Length: 2\r\n\r\nab';
const SENT_ONCE: readonly (readonly [string, string])[] = [
  ['POST', BODY],
  ['POST', NO_BODY],
  ['PATCH', BODY],
  ['PUT', BODY],
  ['DELETE', 'Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n'],
];

describe.each(FAILURES)('U05 a reused connection that is %s before a response', (_, fail) => {
  test.each(RETRIED)('%s with %j is retried once, on a new connection', async (method, rest) => {
    const { upstream, proxy } = await setUp();
    respondOnceThen(upstream, fail);
    expect((await rawRequest(proxy.port, message('GET'))).status).toBe(200);
    const response = await rawRequest(proxy.port, message(method, rest));
    expect([response.status, response.body]).toEqual([200, `${method} /files/1`]);
    expect(upstream.requests.map((request) => `${request.method} ${request.connection}`)).toEqual([
      'GET 1',
      `${method} 1`,
      `${method} 2`,
    ]);
    expect(proxy.log.join('')).toContain('upstream_retried');
  });

  test('the connection of the retried request is closed after the response', async () => {
    const { upstream, proxy } = await setUp();
    respondOnceThen(upstream, fail);
    for (let count = 0; count < 3; count += 1) expect((await rawRequest(proxy.port, message('GET'))).status).toBe(200);
    expect(upstream.requests.map(({ connection }) => connection)).toEqual([1, 1, 2, 3]);
    expect(upstream.requests.map((request) => headerValues(request, 'connection')[0])).toEqual([
      'keep-alive',
      'keep-alive',
      'close',
      'keep-alive',
    ]);
  });

  test.each(SENT_ONCE)('%s with %j is 502 and was sent once', async (method, rest) => {
    const { upstream, proxy } = await setUp();
    respondOnceThen(upstream, fail);
    await rawRequest(proxy.port, message('GET'));
    expect((await rawRequest(proxy.port, message(method, rest))).status).toBe(502);
    expect(upstream.requests.filter((request) => request.method === method)).toHaveLength(1);
  });
});

describe('U05 no retry', () => {
  test('on a new connection that the upstream closes after the request', async () => {
    const { upstream, proxy } = await setUp();
    upstream.respondWith((socket) => socket.destroy());
    expect((await rawRequest(proxy.port, message('GET'))).status).toBe(502);
    expect(upstream.requests).toHaveLength(1);
  });

  test('after part of the response has arrived', async () => {
    const { upstream, proxy } = await setUp();
    respondOnceThen(upstream, (socket) => socket.end('HTT'));
    await rawRequest(proxy.port, message('GET'));
    expect((await rawRequest(proxy.port, message('GET'))).status).toBe(502);
    expect(upstream.requests).toHaveLength(2);
  });

  test('after a retry has failed', async () => {
    const { upstream, proxy } = await setUp();
    let responded = 0;
    upstream.respondWith((socket, request) => {
      if (responded++ === 0) respondOk(socket, request);
      else socket.destroy();
    });
    await rawRequest(proxy.port, message('GET'));
    expect((await rawRequest(proxy.port, message('GET'))).status).toBe(502);
    expect(upstream.requests).toHaveLength(3);
  });
});

test('U05 the same over TLS, where a new connection has completed a handshake but served no request', async () => {
  const ca = await createCa();
  const certificate = await issueServer(ca);
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-'));
  const trusted = join(folder, 'ca.pem');
  writeFileSync(trusted, ca.pem);
  let heads = 0;
  let fail: (socket: Socket, count: number) => void = (socket) => void socket.destroy();
  const server = createTlsServer({ cert: certificate.pem, key: certificate.keyPem }, (socket) => {
    let count = 0;
    socket.on('error', () => {});
    socket.on('data', () => {
      heads += 1;
      count += 1;
      fail(socket, count);
    });
  });
  await new Promise<void>((resolve) => {
    server.listen(0, '127.0.0.1', resolve);
  });
  const { port } = server.address() as AddressInfo;
  const proxy = await startProxyHarness({
    upstream: `https://127.0.0.1:${port}`,
    upstreamSettings: { ca: trusted, connections: 1 },
  });
  cleanups.push(
    () => rmSync(folder, { recursive: true }),
    () => new Promise((resolve) => server.close(resolve)),
    () => proxy.close(),
  );
  expect((await rawRequest(proxy.port, message('GET'))).status).toBe(502);
  expect(heads).toBe(1);
  fail = (socket, count) =>
    count === 1 ? void socket.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok') : void socket.destroy();
  expect((await rawRequest(proxy.port, message('GET'))).body).toBe('ok');
  expect((await rawRequest(proxy.port, message('GET'))).body).toBe('ok');
  expect(heads).toBe(4);
});
