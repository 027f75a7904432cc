import { expect, onTestFinished, test } from 'vitest';
import { buffersAfterCollection } from '../../support/heap.ts';
import { startProxyHarness } from '../../support/proxy-harness.ts';
import { connectRaw, type RawClient } from '../../support/raw-client.ts';
import { startRecordingUpstream } from '../../support/recording-upstream.ts';

const HEAD = 'POST /files/1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer A\r\n';
const SIZE = 50_000;
const BODY = 'x'.repeat(SIZE);
const CONNECTIONS = 100;

test.each([
  ['a length', `${HEAD}Content-Length: ${SIZE}\r\n\r\n${BODY}`],
  ['chunks', `${HEAD}Transfer-Encoding: chunked\r\n\r\n${SIZE.toString(16)}\r\n${BODY}\r\n0\r\n\r\n`],
])('idle connections keep no body with %s in memory', async (_, message) => {
  const upstream = await startRecordingUpstream();
  const proxy = await startProxyHarness({ upstream: upstream.url });
  const clients: RawClient[] = [];
  onTestFinished(async () => {
    for (const client of clients) client.destroy();
    await proxy.close();
    await upstream.close();
  });
  const request = async (): Promise<void> => {
    const client = await connectRaw(proxy.port);
    clients.push(client);
    client.send(message);
    await client.until((text) => text.endsWith('POST /files/1'));
  };
  // The buffers that all connections share.
  await request();
  const before = buffersAfterCollection();
  for (let count = 0; count < CONNECTIONS; count += 1) await request();
  expect(buffersAfterCollection() - before).toBeLessThan((CONNECTIONS * SIZE) / 4);
  expect(upstream.requests).toHaveLength(CONNECTIONS + 1);
});
