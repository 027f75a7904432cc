import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import type { Socket } from 'node:net';
import { afterEach, beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { matrixSettings } from '../attack/matrix-settings.ts';
import { eventLoopTurns } from '../support/event-loop-turns.ts';
import { rule, startProxyHarness } from '../support/proxy-harness.ts';
import { connectRaw, connectRawTls, type RawClient } from '../support/raw-client.ts';
import { type RecordingUpstream, startRecordingUpstream } from '../support/recording-upstream.ts';
import { startGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';

/**
 * Responses to HTTP/1.1 requests that the client is still sending (RFC 9112 §9.6). Many clients send all of a body before
 * they read, and some give up the response when the connection is reset while they send.
 */
const MEBIBYTE = 1_048_576;
const MAX_DISCARDED_BYTES = 8 * MEBIBYTE;
const DISCARD_MS = 10_000;
const PAUSE_MS = 2_000;
/** More than all buffers between the client and the gateway. */
const BUFFERED_BYTES = 64 * MEBIBYTE;
const PART = Buffer.alloc(65_536, 'x');

const post = (path: string, length: number): string =>
  `POST ${path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ${length}\r\n\r\n`;

/** Sends the head and the body, and reads nothing before all of it is sent. */
async function sendAll({ socket }: RawClient, path: string, length: number): Promise<void> {
  socket.pause();
  socket.write(post(path, length));
  for (let left = length; left > 0; left -= PART.length)
    if (!socket.write(PART.subarray(0, left)))
      await until('the client can go on', () => socket.writableLength === 0 || socket.destroyed);
}

async function read(client: RawClient): Promise<string> {
  client.socket.resume();
  return client.until((text) => /\r\n\r\n./s.test(text));
}

describe('a refused upload', () => {
  beforeEach(
    () =>
      void vi.useFakeTimers({
        toFake: ['setInterval', 'clearInterval', 'setTimeout', 'clearTimeout', 'performance'],
      }),
  );
  afterEach(() => void vi.useRealTimers());

  let upstream: RecordingUpstream;

  async function openClient(usesTls = true): Promise<RawClient> {
    upstream = await startRecordingUpstream();
    const proxy = await startProxyHarness({
      upstream: upstream.url,
      rules: [rule('/public/**', 'public'), rule('/files/**', 'files:read')],
      maxBodyBytes: 16 * MAX_DISCARDED_BYTES,
      tls: usesTls,
    });
    const client = await (usesTls ? connectRawTls(proxy.port, proxy.ca.pem) : connectRaw(proxy.port));
    // It goes on sending after the gateway has ended its side.
    client.socket.allowHalfOpen = true;
    onTestFinished(async () => {
      client.destroy();
      await proxy.close();
      await upstream.close();
    });
    return client;
  }

  test('the client may send all of it before it reads the response', async () => {
    const client = await openClient();
    await sendAll(client, '/files/1', MAX_DISCARDED_BYTES - MEBIBYTE);
    expect(await read(client)).toMatch(/^HTTP\/1\.1 401 /);
    expect(client.closeKind()).not.toBe('reset');
  });

  /** A client that has sent a head and got the response, and the other end of its connection. */
  async function refuseUpload(): Promise<{ client: RawClient; accepted: Socket }> {
    const sockets: Socket[] = [];
    const onAccepted = (message: unknown): void => void sockets.push((message as { socket: Socket }).socket);
    subscribe('net.server.socket', onAccepted);
    onTestFinished(() => void unsubscribe('net.server.socket', onAccepted));
    const client = await openClient(false);
    const accepted = sockets.find(({ remotePort }) => remotePort === client.socket.localPort);
    if (accepted === undefined) throw new Error('no connection');
    client.send(post('/files/1', MEBIBYTE));
    await client.until((text) => text.includes('401'));
    return { client, accepted };
  }

  test('a slow client has ten seconds, and may pause for two', async () => {
    const { client, accepted } = await refuseUpload();
    const sendParts = async (count: number): Promise<void> => {
      for (let part = 0; part < count; part += 1) {
        const { bytesRead } = accepted;
        client.send('x');
        await until('the part is read', () => accepted.bytesRead > bytesRead || accepted.destroyed);
        await eventLoopTurns(2);
        vi.advanceTimersByTime(PAUSE_MS - 500);
      }
    };
    await sendParts(5);
    await eventLoopTurns(20);
    expect(accepted.destroyed).toBe(false);
    await sendParts(5);
    expect(accepted.destroyed).toBe(true);
  });

  test('a client that sends nothing more is disconnected after two seconds', async () => {
    const { accepted } = await refuseUpload();
    await until('the connection is closed', () => {
      vi.advanceTimersByTime(500);
      return accepted.destroyed;
    });
    expect(performance.now()).toBeLessThan(DISCARD_MS);
  });

  test('the largest body that is discarded does not end a later request on its connection', async () => {
    const client = await openClient();
    let respond = (): void => {};
    upstream.respondWith((socket) => {
      respond = () => void socket.write('HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone');
    });
    await sendAll(client, '/files/1', MAX_DISCARDED_BYTES);
    expect(await read(client)).toMatch(/^HTTP\/1\.1 401 /);
    client.send('GET /public/1 HTTP/1.1\r\nHost: localhost\r\n\r\n');
    await until('the upstream has the next request', () => upstream.requests.length === 1);
    vi.advanceTimersByTime(PAUSE_MS + 500);
    await eventLoopTurns(20);
    respond();
    expect(await client.until((text) => text.endsWith('done'))).toMatch(/done$/);
  });

  test('of a body that is too large, the rest is not read; the response can be, until the connection is closed', async () => {
    const client = await openClient();
    const { socket } = client;
    socket.pause();
    socket.write(post('/files/1', 1_000 * MEBIBYTE));
    let sent = 0;
    await until('nothing more is read', async () => {
      const before = socket.bytesWritten;
      while (sent < MAX_DISCARDED_BYTES + BUFFERED_BYTES && socket.writableLength < MEBIBYTE) {
        socket.write(PART);
        sent += PART.length;
      }
      await new Promise(setImmediate);
      return sent > MAX_DISCARDED_BYTES && socket.writableLength > 0 && socket.bytesWritten === before;
    });
    expect(socket.destroyed).toBe(false);
    expect(await read(client)).toMatch(/^HTTP\/1\.1 401 /);
    expect(client.closeKind()).not.toBe('reset');
    await until('the connection is closed', () => {
      vi.advanceTimersByTime(DISCARD_MS);
      return socket.destroyed;
    });
  });
});

test.each([
  ['TLS', true],
  ['plain HTTP', false],
] as const)(
  'of a body in an unsupported transfer coding, about as much is read as of any other (%s)',
  async (_, tls) => {
    const sockets: Socket[] = [];
    const onAccepted = (message: unknown): void => void sockets.push((message as { socket: Socket }).socket);
    subscribe('net.server.socket', onAccepted);
    onTestFinished(() => void unsubscribe('net.server.socket', onAccepted));
    const upstream = await startRecordingUpstream();
    const proxy = await startProxyHarness({
      upstream: upstream.url,
      rules: [rule('/public/**', 'public')],
      tls,
    });
    const client = await (tls ? connectRawTls(proxy.port, proxy.ca.pem) : connectRaw(proxy.port));
    const { socket } = client;
    // It goes on sending after the gateway has ended its side.
    socket.allowHalfOpen = true;
    onTestFinished(async () => {
      client.destroy();
      await proxy.close();
      await upstream.close();
    });
    const accepted = sockets.find(({ remotePort }) => remotePort === socket.localPort);
    if (accepted === undefined) throw new Error('no connection');
    client.send('POST /public/1 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n');
    socket.on('drain', () => socket.write(PART));
    socket.write(PART);
    expect(await client.until((text) => text.includes('not_implemented'))).toMatch(/^HTTP\/1\.1 501 /);
    while (!accepted.destroyed && accepted.bytesRead < BUFFERED_BYTES) {
      if (socket.writableLength < MEBIBYTE) socket.write(PART);
      await new Promise(setImmediate);
    }
    expect(accepted.bytesRead).toBeGreaterThan(MAX_DISCARDED_BYTES);
    expect(accepted.bytesRead).toBeLessThan(2 * MAX_DISCARDED_BYTES + MEBIBYTE);
  },
);

test('nothing of a pipelined request is discarded and the rest of it forwarded', async () => {
  const upstream = await startRecordingUpstream();
  let respond = (): void => {};
  upstream.respondWith((socket) => {
    respond = () => void socket.write('HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone');
  });
  const proxy = await startProxyHarness({
    upstream: upstream.url,
    rules: [rule('/public/**', 'public'), rule('/files/**', 'files:read')],
    tls: true,
  });
  const client = await connectRawTls(proxy.port, proxy.ca.pem);
  client.socket.allowHalfOpen = true;
  onTestFinished(async () => {
    client.destroy();
    await proxy.close();
    await upstream.close();
  });
  client.send('GET /public/1 HTTP/1.1\r\nHost: localhost\r\n\r\n');
  await until('the upstream has the first request', () => upstream.requests.length === 1);
  client.send('POST /files/1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer A\r\n');
  client.send('Content-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n');
  await eventLoopTurns(50);
  const drained = proxy.drain(2);
  await eventLoopTurns(50);
  respond();
  expect(await client.until((text) => text.endsWith('done'))).toMatch(/^connection: close\r$/im);
  await eventLoopTurns(50);
  client.send('a\r\nFIRST-PART\r\n');
  await eventLoopTurns(50);
  client.send('b\r\nSECOND-PART\r\n0\r\n\r\n');
  await drained;
  const bodies = upstream.requests.slice(1).map(({ body }) => body);
  expect([[], ['FIRST-PARTSECOND-PART']]).toContainEqual(bodies);
});

test.each([
  ['/authsvc/Authorize/Certificate', 413],
  ['/authsvc/oauth2/token', 413],
  ['/authsvc/nothing', 404],
])('a body that is too large for %s: %i is not lost', async (path, status) => {
  const upstream = await startRecordingUpstream();
  const gateway = await startGateway(matrixSettings(upstream.url));
  const client = await connectRawTls(gateway.port, gateway.ca.pem);
  onTestFinished(async () => {
    client.destroy();
    await gateway.close();
    await upstream.close();
  });
  await sendAll(client, path, 3 * MEBIBYTE);
  expect(await read(client)).toMatch(new RegExp(`^HTTP/1\\.1 ${status} `));
  expect(client.closeKind()).not.toBe('reset');
});
