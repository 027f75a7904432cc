import type { ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { eventLoopTurns, waitUntilStable } from '../../support/event-loop-turns.ts';
import { startHttpUpstream } from '../../support/http-upstream.ts';
import { CODE, frameClient, requestFields, SETTING, windowUpdateFrame } from '../../support/http2-frames.ts';
import { rule, startProxyHarness } from '../../support/proxy-harness.ts';
import { until } from '../../support/until.ts';

/** The clock advances only with the test. */
beforeEach(
  () =>
    void vi.useFakeTimers({
      toFake: ['setInterval', 'clearInterval', 'setTimeout', 'clearTimeout', 'performance'],
    }),
);
const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  vi.useRealTimers();
  while (cleanups.length > 0) await cleanups.pop()?.();
});

const advance = (seconds: number): void => void vi.advanceTimersByTime(seconds * 1_000);
/** As long as a response may stall. */
const STALLED_SECONDS = 120;
const PART = Buffer.alloc(32_768, 'x');
/** Less than makes the stream wait for the connection. */
const TAIL = 'y'.repeat(30_000);

/** A client with large windows that has stopped reading, and a response that fills the buffers of its connection. */
async function stallResponse() {
  let response!: ServerResponse;
  const upstream = await startHttpUpstream((_, started) => {
    response = started;
    response.flushHeaders();
  }, false);
  cleanups.push(() => upstream.close());
  const proxy = await startProxyHarness({
    upstream: upstream.url,
    upstreamSettings: { timeouts: { connect: 3_600, headers: 3_600, idle: 3_600 } },
    rules: [rule('/public/**', 'public')],
    tls: true,
    http2: true,
  });
  cleanups.push(() => proxy.close());
  const client = await frameClient(proxy.port, {
    ca: proxy.ca.pem,
    settings: [
      [SETTING.headerTableSize, 0],
      [SETTING.initialWindowSize, 0x7fff_ffff],
    ],
  });
  cleanups.push(() => client.destroy());
  client.send(windowUpdateFrame(0, 0x7000_0000));
  const stream = client.request(requestFields('/public/large'));
  await client.waitForOutcome(stream);
  client.socket.pause();
  const [socket] = proxy.http2Sockets as Set<Socket>;
  if (socket === undefined) throw new Error('no connection');
  let written = 0;
  do {
    response.write(PART);
    written += PART.length;
    while (proxy.notes[0]?.transfer?.bytesOut !== written) await eventLoopTurns(1);
    await eventLoopTurns(2);
    // The kernel may enlarge its buffers.
    if (socket.writableLength > 0) await waitUntilStable(() => socket.writableLength, 200);
  } while (socket.writableLength === 0);
  return { client, stream, socket, response, written, drain: () => proxy.drain(3_600) };
}

test('a client that has stopped reading gets the rest of its response after a shutdown', async () => {
  const { client, stream, socket, response, written, drain } = await stallResponse();
  response.end(TAIL);
  const drained = drain();
  await until('the gateway has ended the connection', () => {
    advance(1);
    return socket.writableEnded;
  });
  expect(socket.writableFinished).toBe(false);
  advance(STALLED_SECONDS / 2);
  expect(socket.destroyed).toBe(false);
  client.socket.resume();
  expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
  expect(client.bodyLength(stream)).toBe(written + TAIL.length);
  expect(client.body(stream).endsWith(`x${TAIL}`)).toBe(true);
  expect(client.goAways()).toEqual([{ lastStream: stream, code: CODE.noError }]);
  await client.until(() => client.closed());
  expect(await drained).toBe(true);
});

test('a client that never reads the rest is disconnected', async () => {
  const { client, stream, socket, response, drain } = await stallResponse();
  response.end(TAIL);
  const drained = drain();
  await until('the gateway has closed the connection', () => {
    advance(STALLED_SECONDS + 2);
    return socket.destroyed;
  });
  expect(await drained).toBe(true);
  client.socket.resume();
  await client.until(() => client.closed());
  expect(client.endedCleanly(stream)).toBe(false);
});
