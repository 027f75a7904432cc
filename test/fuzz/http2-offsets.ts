import { connect, type Socket } from 'node:net';
import type { ConnectionOptions } from 'node:tls';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { matrixSettings } from '../attack/matrix-settings.ts';
import { indexed, literal, NEWEST_ENTRY } from '../support/hpack.ts';
import {
  CODE,
  dataFrame,
  FLAG,
  FRAME,
  type FrameClient,
  frame,
  frameClient,
  headersFrame,
  PREFACE,
  resetFrame,
  settingsFrame,
  windowUpdateFrame,
} from '../support/http2-frames.ts';
import {
  type RecordedRequest,
  type RecordingUpstream,
  respondOk,
  startRecordingUpstream,
} from '../support/recording-upstream.ts';
import { scrape } from '../support/scrape.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';

/**
 * X12 over HTTP/2: a valid client byte stream with three requests, one of them with a body, is split, cut off and reset at
 * every position. `step` tests only every so many positions.
 */
const STREAMS = [1, 3, 5] as const;
const BODIES: Readonly<Record<number, string>> = {
  1: 'GET /files/1',
  3: 'POST /public/2',
  5: 'GET /public/3',
};
/** Connections that are tested at once. */
const PARALLEL = 8;

/** Indexed and literal fields, with and without Huffman coding; the later requests use entries of the earlier ones. */
const clientFrames = (token: string): Buffer[] => [
  Buffer.concat([PREFACE, settingsFrame([[4, 100_000]])]),
  frame(FRAME.settings, FLAG.ack, 0),
  headersFrame(
    1,
    Buffer.concat([
      indexed(2),
      indexed(7),
      literal(1, 'localhost:8443', 'incremental'),
      literal(4, '/files/1', 'none', true),
      literal('x-kept', 'a value of the table', 'incremental', true),
      literal(23, `Bearer ${token}`, 'never', true),
    ]),
  ),
  windowUpdateFrame(0, 10_000),
  headersFrame(
    3,
    Buffer.concat([
      indexed(3),
      indexed(7),
      indexed(NEWEST_ENTRY + 1),
      literal(4, '/public/2'),
      indexed(NEWEST_ENTRY),
      literal(28, '11'),
    ]),
    { end: false, endHeaders: false },
  ),
  frame(FRAME.continuation, FLAG.endHeaders, 3, literal('x-more', 'continued')),
  dataFrame(3, 'hello '),
  dataFrame(3, 'world', { end: true, padding: 5 }),
  headersFrame(
    5,
    Buffer.concat([indexed(2), indexed(7), indexed(NEWEST_ENTRY + 1), literal(4, '/public/3'), indexed(NEWEST_ENTRY)]),
  ),
];

/** A CONTINUATION frame must follow its HEADERS frame directly. */
const isWithinHeaderBlock = (index: number): boolean => index === 4;

const normalize = ({ method, target, headers, body }: RecordedRequest): string => {
  const fields = headers.filter(([name]) => !['x-request-id', 'traceparent'].includes(name));
  return JSON.stringify([method, target, fields, body]);
};

export function testOffsets(step: number): void {
  let gateway: TestGateway;
  let upstream: RecordingUpstream;
  let frames: Buffer[];
  let bytes: Buffer;
  beforeAll(async () => {
    upstream = await startRecordingUpstream();
    gateway = await startGateway(matrixSettings(upstream.url, (settings) => ({ ...settings, log: { level: 'info' } })));
    frames = clientFrames((await gateway.grant()).access_token);
    bytes = Buffer.concat(frames);
  });
  afterAll(async () => {
    await gateway.close();
    await upstream.close();
  });

  const open = (tls: ConnectionOptions = {}): Promise<FrameClient> =>
    frameClient(gateway.port, {
      ca: gateway.ca.pem,
      opening: Buffer.alloc(0),
      acknowledgeSettings: false,
      tls,
    });

  /** Writes each piece in a TLS record of its own, so that the gateway reads them one by one. */
  async function write(client: FrameClient, pieces: readonly Buffer[]): Promise<void> {
    for (const piece of pieces.filter(({ length }) => length > 0))
      await new Promise<void>((resolve) => {
        client.socket.write(piece, () => setImmediate(resolve));
      });
  }

  /** Runs a case for each position, several at a time. */
  async function forEachPosition(count: number, run: (at: number) => Promise<void>): Promise<void> {
    let next = 0;
    const runNext = async (): Promise<void> => {
      for (let at = next; at < count; at = next) {
        next += step;
        await run(at);
      }
    };
    await Promise.all(Array.from({ length: PARALLEL }, runNext));
  }

  async function expectServed(client: FrameClient, streams: readonly number[], what: string): Promise<void> {
    for (const stream of streams) {
      const outcome = await client.waitForEnd(stream);
      expect([what, stream, outcome, client.body(stream)]).toEqual([what, stream, { status: 200 }, BODIES[stream]]);
    }
  }

  const readInFlight = async (): Promise<number> =>
    (await scrape(gateway.adminPort)).value('gatehouse_http_requests_in_flight');

  /** Nothing is left of the connections, no error was logged, and a new client is served. */
  async function expectIdle(): Promise<void> {
    await until('no request is active', async () => (await readInFlight()) === 0);
    expect(gateway.log.filter(({ level }) => level === 'error')).toEqual([]);
    gateway.clearLog();
    const client = await open();
    client.send(bytes);
    await expectServed(client, STREAMS, 'a new client');
    client.destroy();
    upstream.reset();
  }

  test('X12 requests that are split at any position, or arrive byte by byte, are the same requests', async () => {
    const whole = await open();
    await write(whole, [bytes]);
    await expectServed(whole, STREAMS, 'in one piece');
    whole.destroy();
    const expected = upstream.requests.map(normalize).toSorted();
    expect(expected.length).toBe(3);
    upstream.reset();
    let count = 0;
    await forEachPosition(bytes.length, async (at) => {
      const client = await open();
      await write(client, [bytes.subarray(0, at), bytes.subarray(at)]);
      await expectServed(client, STREAMS, `split at ${at}`);
      client.destroy();
      count += 1;
    });
    const slow = await open();
    await write(
      slow,
      Array.from(bytes, (byte) => Buffer.from([byte])),
    );
    await expectServed(slow, STREAMS, 'byte by byte');
    slow.destroy();
    const seen = new Map<string, number>();
    for (const request of upstream.requests.map(normalize)) seen.set(request, (seen.get(request) ?? 0) + 1);
    expect([...seen.keys()].toSorted()).toEqual(expected);
    expect([...seen.values()]).toEqual(expected.map(() => count + 1));
    await expectIdle();
  });

  test('X12 clients that disconnect after any byte leave nothing behind, and no incomplete request is forwarded', async () => {
    const bodyEnd = Buffer.concat(frames.slice(0, 8)).length;
    await forEachPosition(bytes.length, async (at) => {
      const socket = connect(gateway.port, '127.0.0.1');
      const client = await open({ socket });
      await write(client, [bytes.subarray(0, at)]);
      // With a TCP reset, or with a TLS close_notify and FIN; and some wait until the gateway closes its side, too.
      if (at % 3 === 0) socket.resetAndDestroy();
      else if (at % 3 === 1) client.destroy();
      else {
        client.socket.end();
        await client.until(() => client.closed());
      }
    });
    await expectIdle();
    // The body of the request was complete only with its last DATA frame.
    upstream.reset();
    const client = await open();
    await write(client, [bytes.subarray(0, bodyEnd - 1)]);
    await client.until(() => client.endedCleanly(1));
    client.destroy();
    await expectIdle();
    expect(upstream.requests.filter(({ method }) => method === 'POST')).toEqual([]);
  });

  test('X12 clients that disconnect after any byte while the upstream does not respond leave nothing behind', async () => {
    const held = new Set<Socket>();
    upstream.respondWith((socket) => void held.add(socket.once('close', () => held.delete(socket))));
    await forEachPosition(bytes.length, async (at) => {
      const client = await open();
      await write(client, [bytes.subarray(0, at)]);
      client.destroy();
    });
    await until('no upstream connection is in use', () => held.size === 0);
    upstream.respondWith(respondOk);
    await expectIdle();
  });

  test('X12 a stream that is reset after any frame ends, and the others are served', async () => {
    for (const stream of STREAMS)
      for (let after = 0; after < frames.length; after += 1) {
        const opened = STREAMS.filter((id) =>
          frames
            .slice(0, after + 1)
            .some((sent, index) => index > 0 && sent.readUInt32BE(5) === id && sent[3] === FRAME.headers),
        );
        if (!opened.includes(stream) || isWithinHeaderBlock(after)) continue;
        const what = `stream ${stream} reset after frame ${after}`;
        const client = await open();
        // In one piece, so that the response does not come first.
        const isClosed = (received: Buffer): boolean =>
          received[3] === FRAME.data && received.readUInt32BE(5) === stream;
        const rest = frames.slice(after + 1).filter((sent) => !isClosed(sent));
        client.send(...frames.slice(0, after + 1), resetFrame(stream, CODE.cancel), ...rest);
        await expectServed(
          client,
          STREAMS.filter((id) => id !== stream),
          what,
        );
        await client.waitForPong();
        expect([what, client.isOver()]).toEqual([what, false]);
        client.destroy();
      }
    await expectIdle();
  });

  test('X12 DATA of a stream that was reset is ignored or a stream error, and the others are served', async () => {
    const client = await open();
    client.send(...frames.slice(0, 6), resetFrame(3), ...frames.slice(6));
    await expectServed(client, [1, 5], 'DATA after RST_STREAM');
    expect([undefined, CODE.streamClosed]).toContain(client.resetCode(3));
    client.destroy();
    await expectIdle();
  });
}
