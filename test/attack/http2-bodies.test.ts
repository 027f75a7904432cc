import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, expect, test } from 'vitest';
import { dataFrame, type FrameClient, frameClient, requestFields, windowUpdateFrame } from '../support/http2-frames.ts';
import { bearer, type HarnessOptions, startProxyHarness } from '../support/proxy-harness.ts';

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  while (cleanups.length > 0) await cleanups.pop()?.();
});

/** A client of a proxy whose upstream responds at once with `body`, or with the length of the request body. */
async function openClient(options: Partial<HarnessOptions> = {}, body?: Buffer): Promise<FrameClient> {
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
    tls: true,
    http2: true,
    ...options,
  });
  cleanups.push(() => proxy.close());
  const client = await frameClient(proxy.port, { ca: proxy.ca.pem });
  cleanups.push(() => client.destroy());
  return client;
}

test('X07 a complete body without a declared length that is too large is refused, not dropped', async () => {
  const client = await openClient({ maxBodyBytes: 1_000 });
  const stream = client.post(requestFields('/public/1', 'POST'), 'x'.repeat(2_000));
  expect(await client.waitForEnd(stream)).toEqual({ status: 413 });
});

test('X07 a complete body reaches the upstream after its token was looked up', async () => {
  const client = await openClient({ readAccessToken: async () => bearer() });
  const stream = client.post([...requestFields('/files/1', 'POST'), ['authorization', 'Bearer A']], 'x'.repeat(500));
  expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
  expect(client.body(stream)).toBe('received 500');
});

test('X07 a long response to an incomplete upload arrives completely', async () => {
  const body = Buffer.alloc(100_000, 'y');
  const client = await openClient({}, body);
  const stream = client.request(requestFields('/public/1', 'POST'), { end: false });
  client.send(dataFrame(stream, 'the beginning'));
  await client.until(() => client.body(stream).length === 65_535);
  client.send(windowUpdateFrame(0, body.length), windowUpdateFrame(stream, body.length));
  await client.until(() => client.endedCleanly(stream));
  expect(client.body(stream).length).toBe(body.length);
});
