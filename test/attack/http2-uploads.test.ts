import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest';
import { rule, startProxyHarness } from '../support/proxy-harness.ts';
import { startRecordingUpstream } from '../support/recording-upstream.ts';
import { until } from '../support/until.ts';
import { FLAG, FRAME, type FrameClient, frame, frameClient, requestFields } from './h2-frames.ts';

/** X07 the limit on frames that serve no purpose, and bodies that are not read yet. */

// The gateway looks at its connections at intervals: here, when a test says so.
beforeAll(() => void vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] }));
afterAll(() => void vi.useRealTimers());

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  while (cleanups.length > 0) await cleanups.pop()?.();
});

async function waitForPong(one: FrameClient): Promise<void> {
  const pongs = (): number =>
    one.frames.filter(({ type, flags }) => type === FRAME.ping && flags === FLAG.ack).length;
  const before = pongs();
  one.send(frame(FRAME.ping, 0, 0, Buffer.alloc(8, 7)));
  await one.until(() => pongs() > before);
}

test('X07 a client whose uploads wait for a connection of the upstream is not ended', async () => {
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
  const one = await frameClient(proxy.port, { ca: proxy.ca.pem });
  cleanups.push(() => one.destroy());
  const first = one.request(requestFields('/public/first'));
  await until('it has the connection', () => upstream.requests.length === 1);

  // Each fills the window of its stream, as clients do that upload large files.
  const part = Buffer.alloc(16_000);
  for (let count = 0; count < 12; count += 1) {
    const stream = one.request(requestFields('/public/upload', 'POST'), { end: false });
    for (let sent = 0; sent < 16; sent += 1) one.send(frame(FRAME.data, 0, stream, part));
    await waitForPong(one);
  }
  vi.advanceTimersByTime(1_000);
  await waitForPong(one);
  expect([one.isOver(), one.goAway()]).toEqual([false, undefined]);
  respondToFirst();
  await one.until(() => one.endedCleanly(first));
  expect(one.outcome(first)?.status).toBe(200);
});
