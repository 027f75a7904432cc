import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, expect, test } from 'vitest';
import {
  dataFrame,
  type FrameClient,
  frameClient,
  requestFields,
  windowUpdateFrame,
} from '../support/http2-frames.ts';
import {
  bearer,
  type HarnessOptions,
  type ProxyHarness,
  startProxyHarness,
} from '../support/proxy-harness.ts';

/** X07 requests that the fast path passes on after all of their body has arrived. */

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  while (cleanups.length > 0) await cleanups.pop()?.();
});

interface SetUp {
  readonly proxy: ProxyHarness;
  readonly client: FrameClient;
}

/** The upstream responds with the length of the body. */
async function setUp(options: Partial<HarnessOptions> = {}, body?: Buffer): Promise<SetUp> {
  const upstream = createServer((request, response) => {
    let received = 0;
    if (body !== undefined) response.end(body);
    request.on('data', (part: Buffer) => (received += part.length));
    request.on('end', () => response.end(`received ${received}`));
  }).listen(0, '127.0.0.1');
  cleanups.push(() => upstream.close());
  await new Promise((resolve) => upstream.once('listening', resolve));
  const { port } = upstream.address() as AddressInfo;
  const proxy = await startProxyHarness({
    upstream: `http://127.0.0.1:${port}`,
    proxyPath: 'fast',
    tls: true,
    http2: true,
    ...options,
  });
  cleanups.push(() => proxy.close());
  const client = await frameClient(proxy.port, { ca: proxy.ca.pem });
  cleanups.push(() => client.destroy());
  return { proxy, client };
}

test('X07 a complete body without a declared length that is too large is refused, not dropped', async () => {
  const { proxy, client } = await setUp({ maxBodyBytes: 1_000 });
  const stream = client.post(requestFields('/public/1', 'POST'), 'x'.repeat(2_000));
  expect(await client.waitForEnd(stream)).toEqual({ status: 413 });
  expect(proxy.fastPath?.counts.fallbacks.body).toBe(1);
});

test('X07 a complete body reaches the upstream when the token can be verified only at the second attempt', async () => {
  let attempts = 0;
  const { proxy, client } = await setUp({
    readAccessToken: async () => {
      attempts += 1;
      if (attempts === 1) throw new Error('the first attempt fails');
      return bearer();
    },
  });
  const stream = client.post(
    [...requestFields('/files/1', 'POST'), ['authorization', 'Bearer A']],
    'x'.repeat(500),
  );
  expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
  expect(client.body(stream)).toBe('received 500');
  expect([attempts, proxy.fastPath?.counts.fallbacks.refused]).toEqual([2, 1]);
});

test('X07 on the full path, a long response to an incomplete upload arrives completely', async () => {
  const body = Buffer.alloc(100_000, 'y');
  const { client } = await setUp({ proxyPath: 'full' }, body);
  const stream = client.request(requestFields('/public/1', 'POST'), { end: false });
  client.send(dataFrame(stream, 'the beginning'));
  await client.until(() => client.body(stream).length === 65_535);
  client.send(windowUpdateFrame(0, body.length), windowUpdateFrame(stream, body.length));
  await client.until(() => client.endedCleanly(stream));
  expect(client.body(stream).length).toBe(body.length);
});
