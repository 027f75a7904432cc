import { describe, expect, onTestFinished, test } from 'vitest';
import { type HarnessOptions, type ProxyHarness, startProxyHarness } from '../support/proxy-harness.ts';
import { connectRaw, connectRawTls, type RawClient } from '../support/raw-client.ts';
import { type RecordingUpstream, respondOk, startRecordingUpstream } from '../support/recording-upstream.ts';
import { until } from '../support/until.ts';

/** The `Keep-Alive` field makes a request take the full path. */
const get = (path: string, fields = ''): string =>
  `GET ${path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer A\r\nKeep-Alive: 1\r\n${fields}\r\n`;

describe.each([false, true])('pipelined requests on the full path, TLS %s', (tls) => {
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

  test('are forwarded eight at a time, so that a client cannot make gatehouse hold many responses', async () => {
    const { proxy, upstream, client } = await setUp();
    const release = Promise.withResolvers<void>();
    upstream.respondWith((socket, request) => {
      if (request.target === '/files/0') void release.promise.then(() => respondOk(socket, request));
      else respondOk(socket, request);
    });
    client.send(Array.from({ length: 50 }, (_, index) => get(`/files/${index}`)).join(''));
    await until('all of them were read', () => proxy.notes.length === 50);
    await until('the first one is at the upstream', () => upstream.requests.length > 0);
    await until('the next ones are at the upstream', () => upstream.requests.length >= 8);
    expect(new Set(upstream.requests.map(({ target }) => target))).toEqual(
      new Set(Array.from({ length: 8 }, (_, index) => `/files/${index}`)),
    );
    release.resolve();
    const text = await client.until((all) => all.endsWith('GET /files/49'));
    expect([...text.matchAll(/GET (\/files\/\d+)/g)].map(([, path]) => path)).toEqual(
      Array.from({ length: 50 }, (_, index) => `/files/${index}`),
    );
  });

  test('are reported as disconnected when the client leaves before it is their turn', async () => {
    const { proxy, upstream, client } = await setUp();
    upstream.respondWith(() => {});
    client.send(get('/files/1').repeat(20));
    await until('all of them were read', () => proxy.notes.length === 20 && upstream.requests.length > 0);
    client.destroy();
    await until('each of them has ended', () =>
      proxy.notes.every(({ reason }) => reason === 'client_disconnected'),
    );
  });

  test('close the connection when there are too many, while their token is looked up', async () => {
    const { proxy, client } = await setUp({ readAccessToken: () => new Promise(() => {}) });
    client.send(get('/files/1').repeat(20_000));
    await client.closed();
    expect(proxy.notes.length).toBeLessThanOrEqual(128);
  });

  test('close the connection when there are too many behind a response that closes it', async () => {
    const { upstream, client } = await setUp();
    upstream.respondWith(() => {});
    client.send(get('/files/slow') + get('/files/1', 'Expect: x\r\n'));
    await until('the first one is at the upstream', () => upstream.requests.length === 1);
    client.send('GET / HTTP/1.1\r\nA:b\r\n\r\n'.repeat(20_000));
    await client.closed();
    expect(upstream.requests).toHaveLength(1);
  });

  test('have their token checked again when it is their turn', async () => {
    let isRevoked = false;
    const { proxy, upstream, client } = await setUp({
      revocations: { isRevoked: () => isRevoked },
      endStreams: 'none',
    });
    const release = Promise.withResolvers<void>();
    upstream.respondWith((socket, request) => void release.promise.then(() => respondOk(socket, request)));
    client.send(Array.from({ length: 9 }, (_, index) => get(`/files/${index}`)).join(''));
    await until('all were read', () => proxy.notes.length === 9 && upstream.requests.length > 0);
    isRevoked = true;
    release.resolve();
    await client.until((all) => all.split('HTTP/1.1 ').length === 10);
    expect(client.text().split('HTTP/1.1 ').at(-1)).toMatch(/^401 /);
    expect(upstream.requests.map(({ target }) => target)).not.toContain('/files/8');
  });
});
