import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest';
import { eventLoopTurns } from '../../support/event-loop-turns.ts';
import {
  CODE,
  type FrameClient,
  type FrameClientOptions,
  frameClient,
  pingFrame,
  requestFields,
  SETTING,
  windowUpdateFrame,
} from '../../support/http2-frames.ts';
import { type ProxyHarness, rule, startProxyHarness } from '../../support/proxy-harness.ts';
import { type RecordingUpstream, respondOk, startRecordingUpstream } from '../../support/recording-upstream.ts';
import { until } from '../../support/until.ts';

/** Timeouts of connections and streams, on a clock that advances only with the test. */
const IDLE_SECONDS = 65;
const STALLED_SECONDS = 120;
const UPSTREAM_IDLE_SECONDS = 10;
/** Deadlines are checked at intervals. */
const TOLERANCE_SECONDS = 2;

let upstream: RecordingUpstream;
let proxy: ProxyHarness;
beforeAll(async () => {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval', 'setTimeout', 'clearTimeout', 'performance'] });
  upstream = await startRecordingUpstream();
  proxy = await startProxyHarness({
    upstream: upstream.url,
    upstreamSettings: { timeouts: { connect: 3_600, headers: 3_600, idle: 3_600 } },
    extraUpstreams: {
      impatient: {
        targets: [upstream.url],
        connections: 8,
        timeouts: { connect: 3_600, headers: 3_600, idle: UPSTREAM_IDLE_SECONDS },
      },
    },
    rules: [rule('/public/**', 'public'), rule('/impatient/**', 'public', { upstream: 'impatient' })],
    tls: true,
    http2: true,
  });
});
afterAll(async () => {
  vi.useRealTimers();
  await proxy.close();
  await upstream.close();
});

const openClients: FrameClient[] = [];
afterEach(() => {
  for (const client of openClients.splice(0)) client.destroy();
  upstream.reset();
});

const advance = (seconds: number): void => void vi.advanceTimersByTime(seconds * 1_000);

async function openClient(options: Omit<FrameClientOptions, 'ca'> = {}): Promise<FrameClient> {
  const client = await frameClient(proxy.port, { ca: proxy.ca.pem, ...options });
  openClients.push(client);
  return client;
}

const CLOSED_WINDOWS = {
  settings: [
    [SETTING.headerTableSize, 0],
    [SETTING.initialWindowSize, 0],
  ],
} as const;

test('X03 a response of which the client reads less than 16 KiB in 120 s is reset, and its upstream connection is closed', async () => {
  const body = 'x'.repeat(40_000);
  upstream.respondWith((socket) => {
    socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
  });
  const client = await openClient(CLOSED_WINDOWS);
  const [stalled, other] = [client.request(requestFields('/public/1')), client.request(requestFields('/public/2'))];
  await client.until(() => [stalled, other].every((stream) => client.outcome(stream) !== undefined));
  advance(STALLED_SECONDS - TOLERANCE_SECONDS);
  // One is read byte by byte. Of the other one enough is read for another 120 s.
  client.send(windowUpdateFrame(stalled, 1), windowUpdateFrame(other, 16_384));
  await client.until(() => client.bodyLength(other) === 16_384 && client.bodyLength(stalled) === 1);
  expect(client.resetCode(stalled)).toBeUndefined();
  advance(2 * TOLERANCE_SECONDS);
  await client.until(() => client.resetCode(stalled) !== undefined);
  expect([client.resetCode(stalled), client.endedCleanly(stalled)]).toEqual([CODE.cancel, false]);
  advance(STALLED_SECONDS - 4 * TOLERANCE_SECONDS);
  client.send(windowUpdateFrame(other, body.length));
  expect(await client.waitForEnd(other)).toEqual({ status: 200 });
  expect(client.body(other)).toBe(body);
});

test('X03 a response is reset as well if it stalls a second time', async () => {
  const body = 'x'.repeat(1_000);
  upstream.respondWith((socket) => {
    socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${2 * body.length}\r\n\r\n${body}`);
    writeMore = () => void socket.write(body);
  });
  let writeMore = (): void => {};
  const client = await openClient(CLOSED_WINDOWS);
  const stream = client.request(requestFields('/public/1'));
  await client.waitForOutcome(stream);
  advance(STALLED_SECONDS / 2);
  client.send(windowUpdateFrame(stream, body.length));
  await client.until(() => client.bodyLength(stream) === body.length);
  // It does not count while there is nothing to read.
  advance(2 * STALLED_SECONDS);
  await client.waitForPong();
  expect(client.resetCode(stream)).toBeUndefined();
  writeMore();
  await until('the gateway has the rest', () => {
    advance(STALLED_SECONDS + TOLERANCE_SECONDS);
    return client.resetCode(stream) !== undefined;
  });
  expect(client.endedCleanly(stream)).toBe(false);
});

test('X03 a client that reads nothing at all: its responses end after 120 s', async () => {
  const part = Buffer.alloc(65_536, 'x');
  let isClosed = false;
  upstream.respondWith((socket) => {
    socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${part.length * 4_096}\r\n\r\n`);
    socket.once('close', () => (isClosed = true));
    const more = (): void => {
      while (!socket.destroyed && socket.write(part));
      socket.once('drain', more);
    };
    more();
  });
  const client = await openClient({
    settings: [
      [SETTING.headerTableSize, 0],
      [SETTING.initialWindowSize, 0x7fff_ffff],
    ],
  });
  client.send(windowUpdateFrame(0, 0x7000_0000));
  const stream = client.request(requestFields('/public/1'));
  await client.until(() => client.bodyLength(stream) > 0);
  client.socket.pause();
  // The connection takes some megabytes before it stalls.
  await until('the upstream connection is closed', () => {
    advance(STALLED_SECONDS + TOLERANCE_SECONDS);
    return isClosed;
  });
  expect(client.endedCleanly(stream)).toBe(false);
});

test('X03 a response that keeps its upstream waiting is reset with CANCEL: it was the client, not the gateway', async () => {
  upstream.respondWith((socket) => {
    socket.write('HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n');
    socket.write(Buffer.alloc(1_000_000, 'x'));
  });
  const client = await openClient(CLOSED_WINDOWS);
  const before = proxy.notes.length;
  const stream = client.request(requestFields('/impatient/1'));
  await client.waitForOutcome(stream);
  for (let seconds = 0; client.resetCode(stream) === undefined; seconds += 1) {
    // Then the stream would be reset for another reason.
    expect(seconds).toBeLessThan(STALLED_SECONDS - TOLERANCE_SECONDS);
    advance(1);
    await client.waitForPong();
  }
  expect([client.resetCode(stream), client.endedCleanly(stream)]).toEqual([CODE.cancel, false]);
  expect(proxy.notes[before]?.reason).toBe('client_too_slow');
  expect(client.isOver()).toBe(false);
});

test('a connection that is idle for 65 s is closed with GOAWAY; one with a request is not', async () => {
  let respond = (): void => {};
  upstream.respondWith((socket, request) => {
    if (request.target === '/public/held') respond = () => respondOk(socket, request);
    else respondOk(socket, request);
  });
  const [idle, active] = [await openClient(), await openClient()];
  const held = active.request(requestFields('/public/held'));
  await until('the upstream has the request', () => upstream.requests.length === 1);
  expect(await idle.waitForEnd(idle.request(requestFields('/public/1')))).toEqual({ status: 200 });
  advance(IDLE_SECONDS - TOLERANCE_SECONDS);
  // Pings do not keep it open, requests do.
  await idle.waitForPong();
  expect(await idle.waitForEnd(idle.request(requestFields('/public/1')))).toEqual({ status: 200 });
  advance(IDLE_SECONDS - TOLERANCE_SECONDS);
  await idle.waitForPong();
  expect(idle.isOver()).toBe(false);
  advance(2 * TOLERANCE_SECONDS);
  await idle.until(() => idle.isOver());
  expect(idle.goAway()).toBe(CODE.noError);
  await until('the connection is closed', () => {
    advance(1);
    return idle.closed();
  });
  expect(active.isOver()).toBe(false);
  respond();
  expect(await active.waitForEnd(held)).toEqual({ status: 200 });
});

test('a client that does not close its side after GOAWAY is disconnected', async () => {
  const client = await openClient();
  expect(await client.waitForEnd(client.request(requestFields('/public/1')))).toEqual({ status: 200 });
  client.socket.allowHalfOpen = true;
  advance(IDLE_SECONDS + TOLERANCE_SECONDS);
  await client.until(() => client.isOver());
  // What it sends is discarded at first, and then gets a TCP reset.
  await until('the connection is reset', () => {
    advance(1);
    client.send(pingFrame(1));
    return client.closed();
  });
});

test('a client that reads slowly gets all of the last response, although the connection is being closed', async () => {
  const body = 'x'.repeat(2_000_000);
  let hasSent = false;
  upstream.respondWith((socket) =>
    socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n${body}`, () => (hasSent = true)),
  );
  const client = await openClient({
    updateWindows: true,
    settings: [
      [SETTING.headerTableSize, 0],
      [SETTING.initialWindowSize, body.length],
    ],
  });
  client.send(windowUpdateFrame(0, body.length));
  client.socket.pause();
  const stream = client.request(requestFields('/public/1'));
  await until('the upstream has sent the response', () => hasSent);
  await eventLoopTurns(200);
  // GOAWAY, and the end of the wait for its acknowledgement.
  for (const seconds of [IDLE_SECONDS + TOLERANCE_SECONDS, TOLERANCE_SECONDS]) {
    advance(seconds);
    await eventLoopTurns(20);
  }
  client.socket.on('data', () => client.socket.pause());
  await until('the client has read everything', () => {
    advance(0.5);
    client.socket.resume();
    return client.endedCleanly(stream) || client.closed();
  });
  expect(client.bodyLength(stream)).toBe(body.length);
});
