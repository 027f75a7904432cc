import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest';
import { FLAG, FRAME, type FrameClient, frame, frameClient, requestFields } from '../support/http2-frames.ts';
import { rule, startProxyHarness } from '../support/proxy-harness.ts';
import { startRecordingUpstream } from '../support/recording-upstream.ts';
import { until } from '../support/until.ts';

/** X07 the limit on unproductive frames does not apply to bodies that gatehouse has not read yet. */

// The gateway checks its connections at intervals; fake timers let the test trigger the checks.
beforeAll(() => void vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] }));
afterAll(() => void vi.useRealTimers());

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  while (cleanups.length > 0) await cleanups.pop()?.();
});

async function waitForPong(client: FrameClient): Promise<void> {
  const pongs = (): number =>
    client.frames.filter(({ type, flags }) => type === FRAME.ping && flags === FLAG.ack).length;
  const before = pongs();
  client.send(frame(FRAME.ping, 0, 0, Buffer.alloc(8, 7)));
  await client.until(() => pongs() > before);
}

test('X07 the connection of a client whose uploads wait for an upstream connection stays open', async () => {
  const upstream = await startRecordingUpstream();
  cleanups.push(() => upstream.close());
  const proxy = await startProxyHarness({
    upstream: upstream.url,
    upstreamSettings: { connections: 1, maxPending: 100, timeouts: { connect: 5, headers: 60, idle: 60 } },
    rules: [rule('/public/**', 'public')],
    tls: true,
    http2: true,
  });
  cleanups.push(() => proxy.close());
  let respondToFirst = (): void => {};
  upstream.respondWith((socket) => {
    respondToFirst = () => void socket.write('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n');
  });
  const client = await frameClient(proxy.port, { ca: proxy.ca.pem });
  cleanups.push(() => client.destroy());
  const first = client.request(requestFields('/public/first'));
  await until('the first request has the upstream connection', () => upstream.requests.length === 1);

  // Each upload fills the window of its stream, like a large file.
  const part = Buffer.alloc(16_000);
  for (let count = 0; count < 12; count += 1) {
    const stream = client.request(requestFields('/public/upload', 'POST'), { end: false });
    for (let sent = 0; sent < 4; sent += 1) client.send(frame(FRAME.data, 0, stream, part));
    await waitForPong(client);
  }
  vi.advanceTimersByTime(1_000);
  await waitForPong(client);
  expect([client.isOver(), client.goAway()]).toEqual([false, undefined]);
  respondToFirst();
  await client.until(() => client.endedCleanly(first));
  expect(client.outcome(first)?.status).toBe(200);
});
