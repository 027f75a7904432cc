import type { Socket } from 'node:net';
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import type { VerifiedToken } from '../../src/domain/grant.ts';
import { bearer, type ProxyHarness, rule, startProxyHarness } from '../support/proxy-harness.ts';
import { connectRaw, connectRawTls, type RawClient } from '../support/raw-client.ts';
import { type RecordingUpstream, startRecordingUpstream } from '../support/recording-upstream.ts';
import { until } from '../support/until.ts';

/** docs/decisions/0025-half-closed-clients.md */

const get = (path = '/files/1'): string => `GET ${path} HTTP/1.1\r\nHost: gate.test\r\nAuthorization: Bearer A\r\n\r\n`;
const post = (length: number, body: string): string =>
  `POST /files/1 HTTP/1.1\r\nHost: gate.test\r\nAuthorization: Bearer A\r\nContent-Length: ${length}\r\n\r\n${body}`;
const CHUNKED_GET = get('/files/2').replace('\r\n\r\n', '\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n');
const FIRST_EVENT =
  'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n';

describe.each(['plain', 'TLS'])('a client over %s', (connection) => {
  const tls = connection === 'TLS';
  let upstream: RecordingUpstream;
  let proxy: ProxyHarness;
  /** The verification result of the token `late`. */
  let lateToken = Promise.withResolvers<VerifiedToken>();
  beforeAll(async () => {
    upstream = await startRecordingUpstream();
    proxy = await startProxyHarness({
      upstream: upstream.url,
      rules: [rule('/files/**', 'files:read')],
      tls,
      readAccessToken: (token) => (token === 'late' ? lateToken.promise : bearer()),
      upstreamSettings: { timeouts: { connect: 5, headers: 60, idle: 60 } },
    });
  });
  const clients: RawClient[] = [];
  afterEach(() => {
    for (const client of clients.splice(0)) client.destroy();
    upstream.reset();
  });
  afterAll(async () => {
    await proxy.close();
    await upstream.close();
  });

  async function connectClient(): Promise<RawClient> {
    const client = await (tls ? connectRawTls(proxy.port, proxy.ca.pem) : connectRaw(proxy.port));
    client.socket.allowHalfOpen = true;
    clients.push(client);
    return client;
  }
  /** Makes the upstream send `text` instead of a response, and returns the connections that requests arrive on. */
  function holdRequests(text = ''): Socket[] {
    const upstreamSockets: Socket[] = [];
    upstream.respondWith((socket) => {
      if (text !== '') socket.write(text);
      upstreamSockets.push(socket);
    });
    return upstreamSockets;
  }

  test.each([
    ['a GET', get()],
    ['a POST with its body', post(5, 'hello')],
    ['an HTTP/1.0 GET', get().replace('HTTP/1.1', 'HTTP/1.0')],
  ])('a client that sends %s and half-closes gets the response, then the end of the connection', async (_, message) => {
    const client = await connectClient();
    client.socket.end(message);
    const text = await client.closed();
    expect(text).toMatch(/^HTTP\/1\.1 200 OK\r\n/);
    expect(text).toMatch(/\r\n\r\n(?:GET|POST) \/files\/1$/);
    expect(client.closeKind()).toBe('end');
  });

  test('the response may begin long after the client has half-closed, and is unchanged', async () => {
    const upstreamSockets = holdRequests();
    const client = await connectClient();
    client.socket.end(get());
    await until('the upstream has the request', () => upstreamSockets.length === 1);
    // The first bytes of the status line are sent while the client waits.
    await client.until((text) => text.length >= 2);
    expect('HTTP/1.1 '.startsWith(client.text())).toBe(true);
    upstreamSockets[0]?.write('HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate');
    expect(await client.closed()).toMatch(/^HTTP\/1\.1 200 OK\r\n[^]*\r\n\r\nlate$/);
  });

  test.each([
    ['without bodies', [get('/files/1'), get('/files/2')]],
    ['with and without bodies, the last incomplete', [get('/files/1'), CHUNKED_GET, get('/files/3').slice(0, 30)]],
  ])('requests %s followed by a half-close: all complete ones get responses', async (_, messages) => {
    const client = await connectClient();
    client.socket.end(messages.join(''));
    const text = await client.closed();
    expect(text.match(/GET \/files\/\d/g)).toEqual(['GET /files/1', 'GET /files/2']);
    expect(upstream.requests).toHaveLength(2);
  });

  test('a slow request, pipelined after another, gets its response', async () => {
    vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
    try {
      const upstreamSockets = holdRequests();
      const client = await connectClient();
      client.socket.end(get('/files/1') + CHUNKED_GET);
      await until('the upstream has the request', () => upstreamSockets.length >= 1);
      upstreamSockets[0]?.write('HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst');
      await client.until((text) => text.includes('first'));
      await until('the upstream has both requests', () => upstreamSockets.length === 2);
      for (let seconds = 0; seconds < 12; seconds += 3) {
        await vi.advanceTimersByTimeAsync(3_000);
        await new Promise(setImmediate);
      }
      upstreamSockets[1]?.write('HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate');
      expect(await client.closed()).toMatch(/first(?:.|\r|\n)*\r\n\r\nlate$/);
    } finally {
      vi.useRealTimers();
    }
  });

  test('the token of a request behind a served one may take long', async () => {
    vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
    try {
      lateToken = Promise.withResolvers();
      const client = await connectClient();
      client.socket.end(get('/files/1') + get('/files/2').replace('Bearer A', 'Bearer late'));
      await client.until((text) => text.includes('GET /files/1'));
      for (let seconds = 0; seconds < 12; seconds += 3) {
        await vi.advanceTimersByTimeAsync(3_000);
        await new Promise(setImmediate);
      }
      lateToken.resolve(bearer());
      expect(await client.closed()).toMatch(/GET \/files\/2$/);
    } finally {
      vi.useRealTimers();
    }
  });

  test('a client that closes while it waits for a second response ends its request upstream, however long the first took', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval'] });
    try {
      const held = holdRequests();
      const client = await connectClient();
      client.socket.end(get('/files/1') + get('/files/2'));
      await until('the first is upstream', () => held.length >= 1);
      // All probes that are made for one response.
      await vi.advanceTimersByTimeAsync(100_000);
      held[0]?.write('HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst');
      await client.until((text) => text.includes('first'));
      await until('both are upstream', () => held.length === 2);
      client.destroy();
      await until('the upstream connection is closed', async () => {
        await vi.advanceTimersByTimeAsync(100);
        return held[1]?.destroyed;
      });
    } finally {
      vi.useRealTimers();
    }
  });

  test('the upstream request is aborted when a client half-closes while its token is read and then closes', async () => {
    lateToken = Promise.withResolvers();
    const upstreamSockets = holdRequests();
    const client = await connectClient();
    client.socket.end(get().replace('Bearer A', 'Bearer late'));
    await new Promise((resolve) => client.socket.once('finish', resolve));
    for (let iterations = 0; iterations < 20; iterations += 1) await new Promise(setImmediate);
    lateToken.resolve(bearer());
    await until('the upstream has the request', () => upstreamSockets.length === 1);
    client.destroy();
    await until('the upstream connection is closed', () => upstreamSockets[0]?.destroyed);
  });

  test('a chunked response arrives completely', async () => {
    const upstreamSockets = holdRequests(FIRST_EVENT);
    const client = await connectClient();
    client.send(get());
    const before = await client.until((text) => text.includes('first\r\n'));
    client.socket.end();
    await client.until((text) => text.length > before.length);
    upstreamSockets[0]?.write('4\r\nnext\r\n0\r\n\r\n');
    const text = await client.closed();
    expect(text.slice(before.length)).toMatch(/^0+4\r\nnext\r\n0\r\n\r\n$/);
  });

  test('the upstream request is aborted when its client closes the connection', async () => {
    const upstreamSockets = holdRequests();
    const client = await connectClient();
    client.send(get());
    await until('the upstream has the request', () => upstreamSockets.length === 1);
    client.destroy();
    await until('the upstream connection is closed', () => upstreamSockets[0]?.destroyed);
  });

  test('an idle event stream is aborted upstream when its client closes the connection', async () => {
    const upstreamSockets = holdRequests(FIRST_EVENT);
    const client = await connectClient();
    client.send(get());
    await client.until((text) => text.includes('first'));
    client.destroy();
    await until('the upstream connection is closed', () => upstreamSockets[0]?.destroyed);
  });

  test('the upstream request is aborted when a half-closed client closes before the response', async () => {
    const upstreamSockets = holdRequests();
    const client = await connectClient();
    client.socket.end(get());
    await until('the upstream has the request', () => upstreamSockets.length === 1);
    await client.until((text) => text.length >= 2);
    client.destroy();
    await until('the upstream connection is closed', () => upstreamSockets[0]?.destroyed);
  });

  test.each([
    ['a header section', 'GET /files/1 HTTP/1.1\r\nHost: gate.te'],
    ['a body', post(10, 'half')],
  ])('a half-close within %s: 400, and no complete request upstream', async (_, message) => {
    const client = await connectClient();
    client.socket.end(message);
    expect(await client.closed()).toMatch(/^HTTP\/1\.1 400 /);
    expect(upstream.requests).toEqual([]);
  });

  test('an idle connection is closed when its client half-closes', async () => {
    const client = await connectClient();
    client.send(get());
    await client.until((text) => text.includes('GET /files/1'));
    client.socket.end();
    await client.closed();
    expect(client.closeKind()).toBe('end');
  });
});
