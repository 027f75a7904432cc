import { describe, expect, onTestFinished, test } from 'vitest';
import { clientAccounts } from '../../src/listener/client-accounts.ts';
import { waitUntilStable } from '../support/event-loop-turns.ts';
import { type HarnessOptions, type ProxyHarness, startProxyHarness } from '../support/proxy-harness.ts';
import { connectRaw, connectRawTls, type RawClient } from '../support/raw-client.ts';
import { type RecordingUpstream, respondOk, startRecordingUpstream } from '../support/recording-upstream.ts';
import { until } from '../support/until.ts';

const get = (path: string, fields = ''): string =>
  `GET ${path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer A\r\n${fields}\r\n`;
const range = (count: number): string[] => Array.from({ length: count }, (_, index) => `/files/${index}`);

describe.each([false, true])('pipelined requests, TLS %s', (tls) => {
  async function setUp(options: Partial<HarnessOptions> = {}): Promise<{
    proxy: ProxyHarness;
    upstream: RecordingUpstream;
    client: RawClient;
  }> {
    const upstream = await startRecordingUpstream();
    const proxy = await startProxyHarness({ upstream: upstream.url, tls, ...options });
    const client = await (tls ? connectRawTls(proxy.port, proxy.ca.pem) : connectRaw(proxy.port));
    onTestFinished(async () => {
      client.destroy();
      await proxy.close();
      await upstream.close();
    });
    return { proxy, upstream, client };
  }

  /** Makes the upstream wait with its responses. Returns a function that lets it send them. */
  function holdResponses(upstream: RecordingUpstream): () => void {
    const { promise, resolve } = Promise.withResolvers<void>();
    upstream.respondWith((socket, request) => void promise.then(() => respondOk(socket, request)));
    return resolve;
  }

  test('are forwarded one at a time, so that a client cannot make gatehouse hold many responses', async () => {
    const { proxy, upstream, client } = await setUp();
    const release = holdResponses(upstream);
    client.send(
      range(50)
        .map((path) => get(path))
        .join(''),
    );
    await until('the first one is at the upstream', () => upstream.requests.length > 0);
    await waitUntilStable(() => proxy.notes.length + upstream.requests.length, 50);
    expect([proxy.notes.length, upstream.requests.length]).toEqual([1, 1]);
    release();
    const text = await client.until((all) => all.endsWith('GET /files/49'));
    expect([...text.matchAll(/GET (\/files\/\d+)/g)].map(([, path]) => path)).toEqual(range(50));
  });

  test('are not processed when the client leaves before it is their turn', async () => {
    const { proxy, upstream, client } = await setUp();
    upstream.respondWith(() => {});
    client.send(get('/files/1').repeat(20));
    await until('the first one is at the upstream', () => upstream.requests.length > 0);
    client.destroy();
    await until('it has ended', () => proxy.notes.every(({ reason }) => reason === 'client_disconnected'));
    await waitUntilStable(() => proxy.notes.length, 50);
    expect([proxy.notes.length, upstream.requests.length]).toEqual([1, 1]);
  });

  test.each<[string, Partial<HarnessOptions>]>([
    ['while the response to the first is pending', {}],
    ['while the token of the first is looked up', { readAccessToken: () => new Promise(() => {}) }],
  ])('are not read into memory %s', async (_, options) => {
    const { proxy, upstream, client } = await setUp(options);
    upstream.respondWith(() => {});
    const before = clientAccounts.bytes;
    const { socket } = client;
    const flood = Buffer.from(get('/files/1').repeat(1_000));
    let sent = 0;
    await until('nothing more is read', async () => {
      const written = socket.bytesWritten;
      while (socket.writableLength < 1_048_576) {
        socket.write(flood);
        sent += flood.length;
      }
      await new Promise(setImmediate);
      return sent > 4_000_000 && socket.bytesWritten === written;
    });
    expect(clientAccounts.bytes - before).toBeLessThan(1_000_000);
    expect(proxy.notes).toHaveLength(1);
  });

  test('are not processed after a response that closes the connection', async () => {
    const { proxy, upstream, client } = await setUp();
    const release = holdResponses(upstream);
    client.send(get('/files/slow') + get('/files/1', 'Expect: x\r\n'));
    await until('the first one is at the upstream', () => upstream.requests.length === 1);
    client.send('GET / HTTP/1.1\r\nA:b\r\n\r\n'.repeat(20_000));
    release();
    const text = await client.closed();
    expect(text.match(/HTTP\/1\.1 \d+/g)).toEqual(['HTTP/1.1 200', 'HTTP/1.1 417']);
    expect([proxy.notes.length, upstream.requests.length]).toEqual([2, 1]);
  });

  test('are authorized when it is their turn', async () => {
    let isRevoked = false;
    const { upstream, client } = await setUp({
      revocations: { isRevoked: () => isRevoked },
      endStreams: 'none',
    });
    const release = holdResponses(upstream);
    client.send(
      range(9)
        .map((path) => get(path))
        .join(''),
    );
    await until('the first one is at the upstream', () => upstream.requests.length > 0);
    isRevoked = true;
    release();
    const text = await client.until((all) => all.split('HTTP/1.1 ').length === 10);
    expect(text.match(/HTTP\/1\.1 \d+/g)).toEqual(['HTTP/1.1 200', ...Array.from({ length: 8 }, () => 'HTTP/1.1 401')]);
    expect(upstream.requests).toHaveLength(1);
  });
});
