import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import { afterEach, expect, test } from 'vitest';
import { FrameWriter } from '../../src/http2/frame-writer.ts';
import { openConnectionAccount } from '../support/connection-account.ts';
import { eventLoopTurns, waitUntilStable } from '../support/event-loop-turns.ts';
import { createFrameReader, FLAG, FRAME, type Frame } from '../support/http2-frames.ts';
import { listenTcp } from '../support/tcp-server.ts';
import { until } from '../support/until.ts';

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  while (cleanups.length > 0) await cleanups.pop()?.();
});

interface Pair {
  readonly writer: FrameWriter;
  /** The server side. */
  readonly socket: Socket;
  /** It does not read until `resume`. */
  readonly client: Socket;
  /** What the client has received. */
  readonly frames: readonly Frame[];
  readonly drains: () => number;
}

/** A writer, and a client at the other end of its TCP connection. */
async function openPair(onDrain: () => void = () => {}): Promise<Pair> {
  const accepted = Promise.withResolvers<Socket>();
  const server = await listenTcp(createServer({ noDelay: true }, accepted.resolve));
  cleanups.push(() => server.close());
  const client = connect(server.port, '127.0.0.1').on('error', () => {});
  cleanups.push(() => client.destroy());
  const [socket] = await Promise.all([accepted.promise, once(client, 'connect')]);
  const frames: Frame[] = [];
  const readFrames = createFrameReader((frame) => frames.push(frame));
  client.on('data', readFrames);
  client.pause();
  let drains = 0;
  const writer = new FrameWriter(socket, openConnectionAccount(), () => {
    drains += 1;
    onDrain();
  });
  socket.once('close', () => writer.close());
  return { writer, socket, client, frames, drains: () => drains };
}

const MAX_FRAME = 16_384;
/** Payload sizes, each different from the one before it. */
const SIZES = [0, 1, 300, 4_000, 4_096, 9_000, MAX_FRAME - 1, MAX_FRAME] as const;

interface Written {
  readonly type: number;
  readonly stream: number;
  readonly length: number;
  /** Each byte of the payload. */
  readonly fill: number;
}

/** Writes frame number `index`: DATA, or sometimes HEADERS. Its source is overwritten afterwards. */
function writeFrame(writer: FrameWriter, index: number, size: number): Written {
  const fill = (index * 7) & 0xff;
  const bytes = Buffer.alloc(size + 10, fill);
  const stream = 2 * index + 1;
  const isHeaders = index % 5 === 4;
  if (isHeaders)
    writer.headers(stream, false, {
      maxSize: size,
      writeTo: (out, at) => at + bytes.copy(out, at, 5, 5 + size),
    });
  else writer.data(stream, 0, bytes, 5, 5 + size);
  bytes.fill(0xee);
  return { type: isHeaders ? FRAME.headers : FRAME.data, stream, length: size, fill };
}

const writeFrames = (writer: FrameWriter, from: number, to: number): Written[] =>
  Array.from({ length: to - from }, (_, index) =>
    writeFrame(writer, from + index, SIZES[(from + index) % SIZES.length] ?? 0),
  );

const describeFrame = ({ type, stream, payload }: Frame): Written & { readonly isUniform: boolean } => ({
  type,
  stream,
  length: payload.length,
  fill: payload[0] ?? 0,
  isUniform: payload.equals(Buffer.alloc(payload.length, payload[0])),
});

const expectFrames = (received: readonly Frame[], written: readonly Written[]): void =>
  expect(received.map(describeFrame)).toEqual(
    written.map((frame) => ({ ...frame, fill: frame.length === 0 ? 0 : frame.fill, isUniform: true })),
  );

/** Writes until the client does not keep up; returns what was written. */
async function writeUntilStalled({ writer, socket }: Pair): Promise<Written[]> {
  const written: Written[] = [];
  for (let index = 0; !writer.needsDrain; index += 10) {
    written.push(...writeFrames(writer, index, index + 10));
    await eventLoopTurns(1);
    if (writer.needsDrain) await waitUntilStable(() => socket.bytesWritten + writer.unsentBytes);
  }
  return written;
}

/** Other connections send frames of the same sizes, with other bytes. */
async function useBuffers(): Promise<void> {
  const others = await Promise.all(Array.from({ length: 4 }, () => openPair()));
  for (const { writer, client } of others) {
    client.resume();
    for (let round = 0; round < 10; round += 1) {
      for (const size of [2_000, 12_000, MAX_FRAME, MAX_FRAME, MAX_FRAME])
        writer.data(2 * round + 1, 0, Buffer.alloc(size, 0xdd), 0, size);
      await eventLoopTurns(2);
    }
  }
}

test('frames are sent in the order in which they were written, across any number of full buffers', async () => {
  const { writer, client, frames } = await openPair();
  client.resume();
  // All at once, then some in each iteration of the event loop.
  const written = writeFrames(writer, 0, 200);
  for (let index = 200; index < 400; index += 20) {
    await eventLoopTurns(1);
    written.push(...writeFrames(writer, index, index + 20));
  }
  await until('all frames have arrived', () => frames.length === written.length);
  expectFrames(frames, written);
  await until('nothing is unsent', () => writer.unsentBytes === 0);
});

test('DATA of one stream is collected in frames of the largest size, up to the end of the stream', async () => {
  const { writer, client, frames } = await openPair();
  client.resume();
  const body = Buffer.from(Array.from({ length: 40_000 }, (_, index) => index % 251));
  for (let at = 0; at < body.length; at += 100) writer.data(1, 0, body, at, at + 100);
  writer.endStream(1);
  writer.data(3, 0, body, 0, 5);
  await until('the next stream has begun', () => frames.some(({ stream }) => stream === 3));
  const first = frames.filter(({ stream }) => stream === 1);
  expect(Buffer.concat(first.map(({ payload }) => payload)).equals(body)).toBe(true);
  expect(first.map(({ flags }) => flags)).toEqual([...first.slice(1).map(() => 0), FLAG.endStream]);
  expect(Math.max(...first.map(({ payload }) => payload.length))).toBeGreaterThan(MAX_FRAME - 100);
});

test('the writer needs a drain while the client does not read, and reports it when the client reads again', async () => {
  let neededDrain: boolean | undefined;
  const pair = await openPair(() => (neededDrain = pair.writer.needsDrain));
  const { writer, socket, client, frames, drains } = pair;
  writer.ping(Buffer.alloc(8), 0, false);
  expect(writer.needsDrain).toBe(false);
  await until('the frame is sent', () => writer.unsentBytes === 0);
  // There was nothing to wait for.
  expect(drains()).toBe(0);
  const written = await writeUntilStalled(pair);
  const unsent = writer.unsentBytes;
  const sending = socket.writableLength;
  expect(sending).toBeGreaterThan(0);
  // There is one write at a time: everything else waits in the writer.
  written.push(...writeFrames(writer, written.length, written.length + 20));
  await waitUntilStable(() => writer.unsentBytes);
  expect([writer.needsDrain, drains(), writer.unsentBytes > unsent]).toEqual([true, 0, true]);
  expect(socket.writableLength).toBe(sending);
  client.resume();
  await until('the writer reports it', () => drains() > 0);
  expect(neededDrain).toBe(false);
  await until('all frames have arrived', () => frames.length === written.length + 1);
  expectFrames(frames.slice(1), written);
  expect(writer.needsDrain).toBe(false);
});

test('it can stall again, and reports the end of each stall', async () => {
  const pair = await openPair();
  const { writer, client, frames, drains } = pair;
  let count = 0;
  for (let stalls = 1; stalls <= 2; stalls += 1) {
    count += (await writeUntilStalled(pair)).length;
    const before = drains();
    client.resume();
    await until('all frames have arrived', () => frames.length === count);
    await until('nothing is unsent', () => writer.unsentBytes === 0);
    expect(drains()).toBeGreaterThan(before);
    client.pause();
  }
});

test('connections whose clients do not read set aside a limited amount together, until it is sent or they are closed', async () => {
  const [alone] = await openStalled(1);
  expect(alone?.writer.unsentBytes).toBeGreaterThan(262_144);
  const many = await openStalled(60);
  const total = many.reduce((sum, { writer }) => sum + writer.unsentBytes, 0);
  // 8 MiB together, and for each a write that is being sent, 48 KiB, and what was written last.
  expect(total).toBeLessThan(8_388_608 + 60 * (65_536 + 49_152 + 81_920));
  const [late] = await openStalled(1);
  expect(late?.writer.unsentBytes).toBeLessThan(65_536 + 49_152 + 81_920);
  for (const { writer } of many) writer.end();
  // What was given to a socket that is being closed still counts.
  const [later] = await openStalled(1);
  expect(later?.writer.unsentBytes).toBeLessThan(65_536 + 49_152 + 81_920);
  for (const { socket, client } of many.splice(0, 30)) {
    client.resume();
    await once(socket, 'close');
  }
  for (const { socket } of many) socket.destroy();
  await until('they are closed', () => many.every(({ socket }) => socket.closed));
  const [next] = await openStalled(1);
  expect(next?.writer.unsentBytes).toBeGreaterThan(262_144);
});

async function openStalled(count: number): Promise<Pair[]> {
  const pairs = await Promise.all(Array.from({ length: count }, () => openPair()));
  for (const pair of pairs) await writeUntilStalled(pair);
  return pairs;
}

test('the end sends everything: what is being sent, full buffers and what was collected last', async () => {
  const pair = await openPair();
  const { writer, socket, client, frames } = pair;
  const written = await writeUntilStalled(pair);
  written.push(...writeFrames(writer, written.length, written.length + 50));
  writer.end();
  expect(socket.writableEnded).toBe(true);
  // Later frames are not sent, and are no error.
  writer.ping(Buffer.alloc(8), 0, false);
  writer.flush();
  await useBuffers();
  const ended = once(client, 'end');
  client.resume();
  await ended;
  expectFrames(frames, written);
});

test('the end sends what was written in the same iteration', async () => {
  const { writer, client, frames } = await openPair();
  const written = writeFrames(writer, 0, 3);
  writer.end();
  const ended = once(client, 'end');
  client.resume();
  await ended;
  expectFrames(frames, written);
});

test('a buffer is not used again before it was sent, neither by its own nor by other connections', async () => {
  const stalled = await openPair();
  const written = await writeUntilStalled(stalled);
  written.push(...writeFrames(stalled.writer, written.length, written.length + 30));
  await useBuffers();
  written.push(...writeFrames(stalled.writer, written.length, written.length + 30));
  stalled.client.resume();
  await until('all frames have arrived', () => stalled.frames.length === written.length);
  expectFrames(stalled.frames, written);
});

test('a client that disconnects while frames wait does no harm', async () => {
  const pair = await openPair();
  const { writer, socket, client, drains } = pair;
  socket.on('error', () => {});
  await writeUntilStalled(pair);
  client.resetAndDestroy();
  await until('the connection is closed', () => socket.destroyed);
  await eventLoopTurns(3);
  for (let index = 0; index < 200; index += 50) {
    writeFrames(writer, index, index + 50);
    await eventLoopTurns(1);
  }
  writer.end();
  expect(drains()).toBe(0);
});
