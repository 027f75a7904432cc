import { createServer } from 'node:net';
import { expect, test } from 'vitest';
import { waitUntilStable } from '../support/event-loop-turns.ts';
import { buffersAfterCollection, heapAfterCollection } from '../support/heap.ts';
import {
  CODE,
  dataFrame,
  type FrameClient,
  frameClient,
  repeat,
  requestFields,
  SETTING,
  windowUpdateFrame,
} from '../support/http2-frames.ts';
import { rule, startProxyHarness } from '../support/proxy-harness.ts';
import { startRecordingUpstream } from '../support/recording-upstream.ts';
import { listenTcp } from '../support/tcp-server.ts';
import { until } from '../support/until.ts';
import { GET, useHttp2Attack } from './http2-attack.ts';

/** X03, X04, X07: memory that clients can occupy which do not read, or whose uploads no upstream takes. */
const { attack, expectServed, openClient, resources } = useHttp2Attack();

test('X03 the gateway stops reading from a client that does not read its responses, and continues when it does', async () => {
  attack.upstream.reset();
  // Header sections are not subject to flow control.
  const head = `HTTP/1.1 204 No Content\r\nX-Large: ${'~'.repeat(12_000)}\r\n\r\n`;
  attack.upstream.respondWith((socket) => socket.write(head));
  const client = await openClient();
  await client.waitForPong();
  client.socket.pause();
  const maximum = 6_000;
  const streams: number[] = [];
  const served = (): number => attack.upstream.requests.length;
  while (streams.length < maximum && served() === streams.length) {
    for (let count = 0; count < 50; count += 1) streams.push(client.request(GET));
    await waitUntilStable(served, 200);
  }
  // The socket buffers hold some megabytes; 6,000 responses are 72 MB.
  expect(streams.length).toBeLessThan(maximum);
  client.socket.resume();
  await client.until(() => streams.every((stream) => client.endedCleanly(stream)));
  expect([served(), client.isOver()]).toEqual([streams.length, false]);
  await attack.expectHealthy();
});

test('X03 the gateway reads little of responses whose stream windows are closed', async () => {
  attack.upstream.reset();
  const part = Buffer.alloc(65_536, 'x');
  const paused = new Set<string>();
  attack.upstream.respondWith((socket, { target }) => {
    socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${part.length * 256}\r\n\r\n`);
    let left = 256;
    const more = (): void => {
      paused.delete(target);
      for (; left > 0; left -= 1)
        if (!socket.write(part)) {
          left -= 1;
          paused.add(target);
          socket.once('drain', more);
          return;
        }
    };
    more();
  });
  const client = await openClient({
    settings: [
      [SETTING.headerTableSize, 0],
      [SETTING.initialWindowSize, 0],
    ],
  });
  await client.waitForPong();
  const before = process.memoryUsage().arrayBuffers;
  const streams = Array.from({ length: 8 }, (_, index) => client.request(requestFields(`/public/${index}`)));
  await client.until(() => streams.every((stream) => client.outcome(stream) !== undefined));
  await until('the upstream is throttled', () => paused.size === 8);
  await waitUntilStable(() => paused.size, 200);
  expect(streams.map((stream) => client.bodyLength(stream))).toEqual(streams.map(() => 0));
  expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(8 * 512 * 1_024);
  // A window for one stream reaches that one only.
  client.send(windowUpdateFrame(streams[7] ?? 0, 10));
  await client.until(() => client.bodyLength(streams[7] ?? 0) === 10);
  expect(streams.filter((stream) => client.bodyLength(stream) > 0)).toEqual([streams[7]]);
  client.destroy();
  await until('the upstream connections are closed', () => attack.upstream.openConnections() === 0);
  await attack.expectHealthy();
});

const MiB = 1_048_576;
/** As long as the upstream takes nothing. */
const STREAM_WINDOW = 65_535;

/** A proxy whose only upstream connection is in use, and a client that uploads as much as its windows allow. */
async function startBusyProxy() {
  const upstream = await startRecordingUpstream();
  resources.push({ destroy: () => void upstream.close() });
  const taking = await listenTcp(createServer((socket) => socket.resume()));
  resources.push({ destroy: () => void taking.close() });
  const timeouts = { connect: 60, headers: 60, idle: 60 };
  const proxy = await startProxyHarness({
    upstream: upstream.url,
    extraUpstreams: {
      taking: { targets: [`http://127.0.0.1:${taking.port}`], connections: 8, bodyBuffer: 0, timeouts },
    },
    upstreamSettings: {
      connections: 1,
      maxPending: 100,
      bodyBuffer: 0,
      timeouts,
    },
    maxBodyBytes: 64 * MiB,
    rules: [rule('/public/**', 'public'), rule('/taken/**', 'public', { upstream: 'taking' })],
    tls: true,
    http2: true,
  });
  resources.push({ destroy: () => void proxy.close() });
  let release = (): void => {};
  upstream.respondWith((socket) => {
    release = () => void socket.write('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n');
  });
  const client = await frameClient(proxy.port, { ca: proxy.ca.pem });
  resources.push(client);
  const first = client.request(requestFields('/public/first'));
  await until('the first request has the upstream connection', () => upstream.requests.length === 1);
  return { upstream, client, first, release: () => release() };
}

const upload = (client: FrameClient, length: number): number =>
  client.request([...requestFields('/public/upload', 'POST'), ['content-length', String(length)]], {
    end: false,
  });

test('X07 the gateway takes at most 128 KiB of each, and the rest once the upstream takes it', async () => {
  const { upstream, client, first, release } = await startBusyProxy();
  const length = 900_000;
  const part = Buffer.alloc(10_000, 'x');
  const sentOn = new Map<number, number>();
  let sent = 0;
  const uploads = Array.from({ length: 6 }, () => upload(client, length));
  for (const stream of uploads) sentOn.set(stream, 0);
  /** Sends all that the windows allow. */
  const sendMore = (): void => {
    for (const stream of uploads)
      for (;;) {
        const sentOnStream = sentOn.get(stream) ?? 0;
        const size = Math.min(
          part.length,
          length - sentOnStream,
          STREAM_WINDOW + client.credit(stream) - sentOnStream,
          65_535 + client.credit(0) - sent,
        );
        if (size <= 0) break;
        sent += size;
        sentOn.set(stream, sentOnStream + size);
        client.send(dataFrame(stream, part.subarray(0, size), { end: sentOnStream + size === length }));
      }
  };
  for (let before = -1; before !== sent; ) {
    before = sent;
    sendMore();
    await client.waitForPong();
  }
  // 64 KiB of each, and a part that was not split, may have been read ahead.
  expect(Math.min(...sentOn.values())).toBeGreaterThanOrEqual(STREAM_WINDOW);
  expect(Math.max(...sentOn.values())).toBeLessThanOrEqual(STREAM_WINDOW + 65_536 + part.length);
  expect(upstream.requests.length).toBe(1);

  client.socket.on('data', sendMore);
  upstream.respondWith((socket) => socket.write('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'));
  release();
  await client.until(() => [first, ...uploads].every((stream) => client.endedCleanly(stream)));
  expect(uploads.map((stream) => client.outcome(stream))).toEqual(uploads.map(() => ({ status: 200 })));
  expect(upstream.requests.slice(1).map(({ body }) => body.length)).toEqual(uploads.map(() => length));
  // The window of the connection is as large as at the start.
  await client.waitForPong();
  expect(65_535 + client.credit(0) - sent).toBeGreaterThanOrEqual(MiB / 2);
});

test('X07 DATA beyond the window of a stream resets it, and the connection stays open', async () => {
  const { client, release, first } = await startBusyProxy();
  const part = Buffer.alloc(16_384, 'x');
  const [excessive, modest] = [upload(client, MiB), upload(client, 5)];
  for (let sent = 0; sent <= STREAM_WINDOW + 65_536; sent += part.length) client.send(dataFrame(excessive, part));
  client.send(dataFrame(modest, 'hello', { end: true }));
  expect(await client.waitForOutcome(excessive)).toEqual({ reset: CODE.flowControlError });
  release();
  expect(await client.waitForEnd(first)).toEqual({ status: 200 });
  expect(client.isOver()).toBe(false);
});

test('X04 uploads in frames of one byte use little more memory than their bytes', async () => {
  const { client } = await startBusyProxy();
  const uploads = Array.from({ length: 3 }, () => upload(client, 65_000));
  await client.waitForPong();
  const before = heapAfterCollection();
  for (const stream of uploads)
    for (let sent = 0; sent < 60_000; sent += 1_000) client.send(repeat(dataFrame(stream, 'x'), 1_000));
  await client.waitForPong();
  expect(client.isOver()).toBe(false);
  expect(heapAfterCollection() - before).toBeLessThan(3 * MiB);
});

test('X04 a byte that waits does not keep the bytes in memory that arrived together with it', async () => {
  const { client } = await startBusyProxy();
  const waiting = upload(client, 65_000);
  // An upstream that takes everything.
  const forwarded = client.request(requestFields('/taken/1', 'POST'), { end: false });
  const filler = Buffer.alloc(5_000);
  let sentForwarded = 0;
  let sentWaiting = 0;
  const sendRecord = async (): Promise<void> => {
    await client.until(
      () =>
        65_535 + client.credit(forwarded) - sentForwarded >= 15_000 &&
        65_535 + client.credit(0) - sentForwarded - sentWaiting >= 15_001,
    );
    sentForwarded += 15_000;
    sentWaiting += 1;
    client.send(
      dataFrame(forwarded, filler),
      dataFrame(waiting, 'x'),
      dataFrame(forwarded, filler),
      dataFrame(forwarded, filler),
    );
  };
  // Buffers are pooled meanwhile.
  for (let count = 0; count < 100; count += 1) await sendRecord();
  await client.waitForPong();
  const before = buffersAfterCollection();
  for (let count = 0; count < 800; count += 1) await sendRecord();
  await client.waitForPong();
  expect(client.isOver()).toBe(false);
  // 12 MB have arrived, and 800 bytes wait.
  expect(buffersAfterCollection() - before).toBeLessThan(4 * MiB);
});

test('X07 DATA for a refused request, far beyond the window of its stream, closes the connection', async () => {
  const client = await openClient();
  const refused = client.request(requestFields('/files/1', 'POST'), { end: false });
  await client.until(() => client.resetCode(refused) !== undefined);
  // Frames of a usual size, within the window of the connection.
  const part = Buffer.alloc(16_000);
  let sent = 0;
  while (!client.isOver() && sent < 8 * MiB) {
    await client.until(() => 65_535 + client.credit(0) - sent >= part.length || client.isOver());
    client.send(dataFrame(refused, part));
    sent += part.length;
  }
  await client.waitForPong();
  expect(client.isOver()).toBe(true);
  await attack.expectHealthy();
});

test('X07 bodies of refused requests are credited to the connection', async () => {
  const client = await openClient();
  const part = Buffer.alloc(16_000);
  // More than the window of the connection.
  let sent = 0;
  for (let count = 0; count < 20; count += 1) {
    const refused = client.request(requestFields('/files/1', 'POST'), { end: false });
    for (let frames = 0; frames < 4; frames += 1) {
      client.send(dataFrame(refused, part));
      sent += part.length;
    }
    expect((await client.waitForOutcome(refused))?.status).toBe(401);
    await client.waitForPong();
  }
  expect(sent).toBeGreaterThan(MiB);
  expect(65_535 + client.credit(0) - sent).toBeGreaterThanOrEqual(MiB / 2);
  await expectServed(client);
});
