import { afterEach, beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { matrixSettings } from '../attack/matrix-settings.ts';
import { rule, startProxyHarness } from '../support/proxy-harness.ts';
import { connectRawTls, type RawClient } from '../support/raw-client.ts';
import { startRecordingUpstream } from '../support/recording-upstream.ts';
import { startGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';

/**
 * Responses to HTTP/1.1 requests that the client is still sending (RFC 9112 §9.6). Many clients send all of a body before
 * they read, and some give up the response when the connection is reset while they send.
 */
const MEBIBYTE = 1_048_576;
const MAX_DISCARDED_BYTES = 8 * MEBIBYTE;
const DISCARD_MS = 2_000;
/** More than all buffers between the client and the gateway. */
const BUFFERED_BYTES = 16 * MEBIBYTE;
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

describe.each(['fast', 'full'] as const)('a refused upload, %s path', (proxyPath) => {
  beforeEach(
    () =>
      void vi.useFakeTimers({
        toFake: ['setInterval', 'clearInterval', 'setTimeout', 'clearTimeout', 'performance'],
      }),
  );
  afterEach(() => void vi.useRealTimers());

  async function openClient(): Promise<RawClient> {
    const upstream = await startRecordingUpstream();
    const proxy = await startProxyHarness({
      upstream: upstream.url,
      rules: [rule('/files/**', 'files:read')],
      proxyPath,
      tls: true,
    });
    const client = await connectRawTls(proxy.port, proxy.ca.pem);
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
