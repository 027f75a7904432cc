import { connect, createServer, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type ProxyHarness, startProxyHarness } from '../../support/proxy-harness.ts';
import { connectRaw, connectRawTls, type RawClient } from '../../support/raw-client.ts';
import { type RecordingUpstream, startRecordingUpstream } from '../../support/recording-upstream.ts';
import { listenTcp, type TcpServer } from '../../support/tcp-server.ts';
import { startTlsProxy, type TlsProxy } from './tls-proxy.ts';

/** RFC 9112 §9.8: responses of a TLS upstream that only the close of its connection ends. */

let upstream: RecordingUpstream;
let front: TlsProxy;
/** Forwards TLS records. An attacker in its place can close connections without a close_notify. */
let relay: TcpServer;
/** The connections of requests that wait for the end of their response. */
let held: Socket[];

beforeAll(async () => {
  upstream = await startRecordingUpstream();
  front = await startTlsProxy(upstream.port);
  relay = await listenTcp(
    createServer((socket) => {
      const onward = connect(Number(new URL(front.url).port), '127.0.0.1');
      onward.on('error', () => socket.destroy());
      socket.on('close', () => onward.destroy());
      socket.pipe(onward).pipe(socket);
    }),
  );
});
afterAll(async () => {
  await relay.close();
  await front.close();
  await upstream.close();
});
beforeEach(() => {
  held = [];
  upstream.reset();
  upstream.respondWith((socket) => {
    held.push(socket);
    socket.write('HTTP/1.1 200 OK\r\nX-A: 1\r\n\r\nbody');
  });
});

const CLOSINGS: readonly (readonly [string, () => void])[] = [
  ['a close_notify', () => held.forEach((socket) => socket.end())],
  ['a FIN without a close_notify', () => relay.sockets.forEach((socket) => socket.end())],
];

/** When this fails, Node reports the difference, and a truncated response can be refused (`isEndUncertain`). */
test.each(CLOSINGS)('Node reports %s as the end of the stream', async (_, close) => {
  const socket = connectTls({ port: relay.port, host: '127.0.0.1', rejectUnauthorized: false });
  const events: string[] = [];
  for (const event of ['end', 'error', 'close']) socket.on(event, () => events.push(event));
  socket.write('GET / HTTP/1.1\r\n\r\n');
  const closed = new Promise((resolve) => socket.once('close', resolve));
  socket.once('data', close);
  await closed;
  expect(events).toEqual(['end', 'close']);
});

for (const tls of [false, true])
  describe(`${tls ? 'TLS' : 'plain'} client`, () => {
    let proxy: ProxyHarness;
    let client: RawClient;
    beforeAll(async () => {
      proxy = await startProxyHarness({
        upstream: `https://127.0.0.1:${relay.port}`,
        upstreamSettings: { ca: front.ca, timeouts: { connect: 60, headers: 60, idle: 60 } },
        tls,
      });
    });
    afterAll(() => proxy.close());
    beforeEach(async () => {
      client = await (tls ? connectRawTls(proxy.port, proxy.ca.pem) : connectRaw(proxy.port));
    });
    afterEach(() => client.destroy());

    const request = (method: string): Promise<string> => {
      client.send(`${method} /public/1 HTTP/1.1\r\nHost: gate.test\r\n\r\n`);
      return client.until((text) => text.includes('\r\n\r\n') && (method === 'HEAD' || text.includes('body')));
    };

    test.each(CLOSINGS)('after %s, the close ends the response for the client too', async (_, close) => {
      await request('GET');
      close();
      const text = await client.closed();
      expect(text).toMatch(/^HTTP\/1\.1 200 OK\r\n/);
      expect(text).toMatch(/\r\nConnection: close\r\n/);
      expect(text).not.toMatch(/transfer-encoding|content-length/i);
      expect(text.slice(text.indexOf('\r\n\r\n'))).toBe('\r\n\r\nbody');
      expect(client.closeKind()).toBe('end');
    });

    test('a response that breaks off does not end cleanly', async () => {
      await request('GET');
      for (const socket of relay.sockets) socket.resetAndDestroy();
      const text = await client.closed();
      expect(text).toMatch(/\r\n\r\nbody$/);
      // Over TLS the missing close_notify shows it.
      if (!tls) expect(client.closeKind()).toBe('reset');
      expect(proxy.log.join('')).toContain('upstream_aborted');
    });

    test('a response to HEAD leaves the connection of the client open', async () => {
      await request('HEAD');
      expect(await request('HEAD')).toMatch(/\r\nConnection: keep-alive\r\n/);
      expect(client.closeKind()).toBeUndefined();
    });
  });
