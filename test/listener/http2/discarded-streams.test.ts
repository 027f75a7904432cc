import { createServer } from 'node:net';
import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest';
import {
  CODE,
  dataFrame,
  FRAME,
  type Frame,
  type FrameClient,
  frame,
  frameClient,
  headersFrame,
  requestFields,
  resetFrame,
  windowUpdateFrame,
} from '../../support/http2-frames.ts';
import { type ProxyHarness, rule, startProxyHarness } from '../../support/proxy-harness.ts';
import { type RecordingUpstream, startRecordingUpstream } from '../../support/recording-upstream.ts';
import { listenTcp, type TcpServer } from '../../support/tcp-server.ts';
import { until } from '../../support/until.ts';

/**
 * Requests that the client has not ended when it gets the response. curl 7.88 loses the response if a reset with NO_ERROR
 * arrives while it sends the body; httpx sends all of it before it reads the response.
 */
const ANSWERED_SECONDS = 10;
const ANSWERED_BYTES = 8_388_608;
/** Deadlines are checked at intervals. */
const TOLERANCE_SECONDS = 2;
const MAX_STREAMS = 100;
/** The window of a request whose body is not read. */
const WINDOW = 65_535;

let upstream: RecordingUpstream;
let impatient: TcpServer;
let proxy: ProxyHarness;
beforeAll(async () => {
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval', 'setTimeout', 'clearTimeout', 'performance'] });
  upstream = await startRecordingUpstream();
  // It responds before it reads the body.
  const server = createServer((socket) =>
    socket
      .on('error', () => {})
      .once('data', () => {
        socket.pause();
        socket.write('HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n');
      }),
  );
  impatient = await listenTcp(server);
  proxy = await startProxyHarness({
    upstream: upstream.url,
    extraUpstreams: {
      impatient: {
        targets: [`http://127.0.0.1:${impatient.port}`],
        connections: 8,
        timeouts: { connect: 3_600, headers: 3_600, idle: 3_600 },
      },
    },
    rules: [
      rule('/public/**', 'public'),
      rule('/impatient/**', 'public', { upstream: 'impatient' }),
      rule('/files/**', 'files:read'),
    ],
    tls: true,
    http2: true,
  });
});
afterAll(async () => {
  vi.useRealTimers();
  await proxy.close();
  await upstream.close();
  await impatient.close();
});

const openClients: FrameClient[] = [];
afterEach(() => {
  for (const client of openClients.splice(0)) client.destroy();
  upstream.reset();
});

const advance = (seconds: number): void => void vi.advanceTimersByTime(seconds * 1_000);

async function openClient(): Promise<FrameClient> {
  const client = await frameClient(proxy.port, { ca: proxy.ca.pem, updateWindows: true });
  openClients.push(client);
  return client;
}

const UPLOAD = requestFields('/files/1', 'POST');

/** Begins an upload without a token, and waits for its response. */
async function refuse(client: FrameClient): Promise<number> {
  const stream = client.request(UPLOAD, { end: false });
  expect(await client.waitForEnd(stream)).toEqual({ status: 401 });
  return stream;
}

/** The connection is open and in step. */
async function expectServed(client: FrameClient): Promise<void> {
  expect(await client.waitForEnd(client.request(requestFields('/public/1')))).toEqual({ status: 200 });
  expect(client.isOver()).toBe(false);
}

/** Sends DATA as the window of the stream allows. */
async function upload(client: FrameClient, stream: number, bytes: number, end = false): Promise<void> {
  let read = 0;
  let window = WINDOW;
  for (let left = bytes; left > 0; ) {
    for (; read < client.frames.length; read += 1) {
      const { type, stream: on, payload } = client.frames[read] as Frame;
      if (type === FRAME.windowUpdate && on === stream) window += payload.readUInt32BE(0);
    }
    const size = Math.min(left, window, 16_384);
    if (size === 0) {
      const { length } = client.frames;
      await client.until(() => client.frames.length > length);
      continue;
    }
    left -= size;
    window -= size;
    client.send(dataFrame(stream, Buffer.alloc(size, 'x'), { end: end && left === 0 }));
  }
}

test.each([
  ['DATA', (stream: number) => [dataFrame(stream, 'body', { end: true })]],
  ['an empty DATA frame', (stream: number) => [dataFrame(stream, 'body'), dataFrame(stream, '', { end: true })]],
  ['trailers', (stream: number) => [dataFrame(stream, 'body'), headersFrame(stream, [['x-a', 'b']])]],
  ['RST_STREAM', (stream: number) => [dataFrame(stream, 'body'), resetFrame(stream, CODE.noError)]],
])('a client may end its request after the response: with %s', async (_, rest) => {
  const client = await openClient();
  const stream = await refuse(client);
  await client.waitForPong();
  expect(client.resetCode(stream)).toBeUndefined();
  client.send(...rest(stream));
  await client.waitForPong();
  advance(ANSWERED_SECONDS + TOLERANCE_SECONDS);
  await expectServed(client);
  expect(client.resetCode(stream)).toBeUndefined();
  // Then it is closed (RFC 9113 §5.1).
  client.send(dataFrame(stream, 'more'));
  await client.until(() => client.resetCode(stream) !== undefined);
  expect(client.resetCode(stream)).toBe(CODE.streamClosed);
});

test('clients that end 1,000 refused uploads, in either way, keep their connection', async () => {
  const client = await openClient();
  for (let count = 0; count < 1_000; count += 1) {
    const stream = await refuse(client);
    client.send(count % 2 === 0 ? resetFrame(stream, CODE.noError) : dataFrame(stream, '', { end: true }));
  }
  await expectServed(client);
});

test('a client may send 8 MiB after the response', async () => {
  const client = await openClient();
  const stream = await refuse(client);
  await upload(client, stream, ANSWERED_BYTES, true);
  await expectServed(client);
  expect(client.resetCode(stream)).toBeUndefined();
});

test('a client that has sent as much, and not ended its request, gets a reset with NO_ERROR', async () => {
  const client = await openClient();
  const stream = await refuse(client);
  await upload(client, stream, ANSWERED_BYTES - 1);
  await client.waitForPong();
  expect(client.resetCode(stream)).toBeUndefined();
  client.send(dataFrame(stream, 'x'));
  await client.until(() => client.resetCode(stream) !== undefined);
  expect(client.resetCode(stream)).toBe(CODE.noError);
  client.send(dataFrame(stream, '', { end: true }), windowUpdateFrame(stream, 1), resetFrame(stream));
  await expectServed(client);
});

test('more than its window allows is an error of the connection', async () => {
  const client = await openClient();
  const stream = await refuse(client);
  await upload(client, stream, ANSWERED_BYTES - 1);
  client.send(dataFrame(stream, 'xx'));
  await client.until(() => client.isOver());
  expect(client.goAway()).toBe(CODE.flowControlError);
});

test('a client that has used its window before the response may go on', async () => {
  const client = await openClient();
  const stream = client.request(requestFields('/impatient/1', 'POST'), { end: false });
  await upload(client, stream, WINDOW);
  await until('the client has the response', () => {
    advance(0.1);
    return client.endedCleanly(stream);
  });
  await client.until(() => client.frames.some(({ type, stream: on }) => type === FRAME.windowUpdate && on === stream));
  client.send(dataFrame(stream, 'x', { end: true }));
  await expectServed(client);
  expect([client.outcome(stream), client.resetCode(stream)]).toEqual([{ status: 413 }, undefined]);
});

test(`a client that does not end its request gets a reset with NO_ERROR after ${ANSWERED_SECONDS} s`, async () => {
  const client = await openClient();
  const early = await refuse(client);
  advance(ANSWERED_SECONDS - TOLERANCE_SECONDS);
  const late = await refuse(client);
  await client.waitForPong();
  expect(client.resetCode(early)).toBeUndefined();
  advance(2 * TOLERANCE_SECONDS);
  await client.until(() => client.resetCode(early) !== undefined);
  expect([client.resetCode(early), client.resetCode(late)]).toEqual([CODE.noError, undefined]);
  // Sent before the client has received the reset.
  client.send(dataFrame(early, 'late'), dataFrame(early, 'r', { end: true }));
  advance(ANSWERED_SECONDS);
  await client.until(() => client.resetCode(late) !== undefined);
  expect(client.resetCode(late)).toBe(CODE.noError);
  await expectServed(client);
});

test('requests that are not ended do not use up the streams of a connection: the oldest is reset with NO_ERROR', async () => {
  const client = await openClient();
  const streams: number[] = [];
  for (let count = 0; count < MAX_STREAMS + 3; count += 1) streams.push(await refuse(client));
  await client.waitForPong();
  expect(streams.filter((stream) => client.resetCode(stream) === CODE.noError)).toEqual(streams.slice(0, 3));
  await expectServed(client);
});

test('after the reset of such a stream for an error, nothing more is sent on it', async () => {
  const client = await openClient();
  const stream = await refuse(client);
  client.send(frame(FRAME.priority, 0, stream, Buffer.alloc(4)));
  await client.until(() => client.resetCode(stream) !== undefined);
  expect(client.resetCode(stream)).toBe(CODE.frameSizeError);
  const { length } = client.frames;
  for (let sent = 0; sent < 4; sent += 1) client.send(dataFrame(stream, 'x'.repeat(16_000)));
  advance(ANSWERED_SECONDS + TOLERANCE_SECONDS);
  await expectServed(client);
  expect(client.frames.slice(length).filter(({ stream: on }) => on === stream)).toEqual([]);
});

test('a connection that is closed meanwhile leaves nothing behind', async () => {
  const client = await openClient();
  await refuse(client);
  client.destroy();
  await client.until(() => client.closed());
  advance(ANSWERED_SECONDS + TOLERANCE_SECONDS);
  await expectServed(await openClient());
});
