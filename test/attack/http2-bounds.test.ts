import { createServer } from 'node:net';
import { afterEach, describe, expect, test } from 'vitest';
import { waitUntilStable } from '../support/event-loop-turns.ts';
import { buffersAfterCollection, heapAfterCollection } from '../support/heap.ts';
import { indexed, literal, NEWEST_ENTRY } from '../support/hpack.ts';
import {
  CODE,
  dataFrame,
  type Field,
  FLAG,
  FRAME,
  type FrameClient,
  type FrameClientOptions,
  frame,
  frameClient,
  headerBlock,
  headersFrame,
  pingFrame,
  priorityFrame,
  repeat,
  requestFields,
  resetFrame,
  SETTING,
  settingsFrame,
  windowUpdateFrame,
} from '../support/http2-frames.ts';
import { rule, startProxyHarness } from '../support/proxy-harness.ts';
import { startRecordingUpstream } from '../support/recording-upstream.ts';
import { listenTcp } from '../support/tcp-server.ts';
import { until } from '../support/until.ts';
import { useAttackGateway } from './attack-gateway.ts';

/**
 * X07: every bound on what an HTTP/2 client can send without being served (docs/decisions/0012-http2-listener.md). Each
 * attack exceeds one bound so far that its refill over some seconds does not matter, and stays below all others. Next to it
 * is a legitimate client that stays just below the bound.
 */
const attack = useAttackGateway((settings) => ({ ...settings, log: { level: 'info' } }));

const openClients: { destroy(): void }[] = [];
afterEach(() => {
  for (const client of openClients.splice(0)) client.destroy();
});

async function openClient(options: Omit<FrameClientOptions, 'ca'> = {}): Promise<FrameClient> {
  const { gateway } = attack;
  const client = await frameClient(gateway.port, { ca: gateway.ca.pem, ...options });
  openClients.push(client);
  return client;
}

const getCloseReasons = (): unknown[] =>
  attack.gateway.log.filter(({ event }) => event === 'http2_connection_closed').map(({ why }) => why);

const GET = headerBlock(requestFields('/public/1'));
const get = (stream: number): Buffer => headersFrame(stream, GET);
const post = (stream: number): Buffer =>
  headersFrame(stream, requestFields('/public/1', 'POST'), { end: false });

/** Expects that the connection is closed for abuse; without the bound, the PING after the attack would be acknowledged. */
async function expectClosedForAbuse(client: FrameClient, bytes: Buffer): Promise<void> {
  const before = getCloseReasons().length;
  client.send(bytes);
  await client.waitForPong();
  expect([client.isOver(), client.goAway()]).toEqual([true, CODE.enhanceYourCalm]);
  await client.until(() => client.closed());
  const reasons = getCloseReasons().slice(before);
  expect(reasons).toEqual([expect.stringMatching(/\w/)]);
  expect(attack.upstream.requests.length).toBeLessThanOrEqual(250);
  attack.upstream.reset();
  await attack.expectHealthy();
}

/** Expects that the connection is still open and in step: a request on it is served. */
async function expectServed(client: FrameClient, stream?: number): Promise<void> {
  await client.waitForPong();
  expect([client.isOver(), client.goAway()]).toEqual([false, undefined]);
  const last = client.request(GET, stream === undefined ? {} : { stream });
  expect(await client.waitForEnd(last)).toEqual({ status: 200 });
  expect(client.body(last)).toBe('GET /public/1');
}

/** Opens the stream of a request whose response does not come, so that it stays open in both directions. */
async function openStream(client: FrameClient): Promise<number> {
  attack.upstream.respondWith((socket, { target }) => {
    if (target === '/public/1') socket.write('HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nGET /public/1');
  });
  return client.request([...requestFields('/public/held', 'POST'), ['content-length', '1000']], {
    end: false,
  });
}

/** The client and the stream of a request that has ended. */
async function closedStream(client: FrameClient): Promise<number> {
  const stream = client.request(GET);
  await client.waitForEnd(stream);
  return stream;
}

/** The stream of an upload that was refused and reset before its end. */
async function refusedStream(client: FrameClient): Promise<number> {
  const stream = client.request(requestFields('/files/1', 'POST'), { end: false });
  await client.until(() => client.resetCode(stream) !== undefined);
  return stream;
}

interface Allowance {
  /** Frames of an attack: more than the burst and what is refilled in ten seconds. */
  readonly above: number;
  /** Frames of a legitimate client. */
  readonly below: number;
  /** The frames number `index`. */
  readonly unit: (index: number, stream: number) => Buffer;
  /** Opens the stream that `unit` uses. */
  readonly open?: (client: FrameClient) => Promise<number>;
}

/** 120, and 20 a second: resets by the client, and resets that its errors provoke. */
const RESETS = { above: 400, below: 100 } as const;
/** 200, and 10 a second: frames without purpose, whatever their type. */
const USELESS = { above: 500, below: 150 } as const;
/** The first id after the one that a preparing request may use. */
const at = (index: number): number => index * 2 + 3;

const ALLOWANCES: Readonly<Record<string, Allowance>> = {
  'requests that are reset at once (CVE-2023-44487)': {
    ...RESETS,
    unit: (index) => Buffer.concat([get(at(index)), resetFrame(at(index))]),
  },
  'requests that are reset with NO_ERROR': {
    ...RESETS,
    unit: (index) => Buffer.concat([get(at(index)), resetFrame(at(index), CODE.noError)]),
  },
  'uploads that are reset after some DATA': {
    ...RESETS,
    unit: (index) => Buffer.concat([post(at(index)), dataFrame(at(index), 'x'), resetFrame(at(index))]),
  },
  'streams reset because of a WINDOW_UPDATE of zero (CVE-2025-8671)': {
    ...RESETS,
    unit: (index) => Buffer.concat([get(at(index)), windowUpdateFrame(at(index), 0)]),
  },
  'streams reset because their window overflows (CVE-2025-8671)': {
    ...RESETS,
    unit: (index) => Buffer.concat([post(at(index)), windowUpdateFrame(at(index), 0x7fff_ffff)]),
  },
  'streams reset because their head is malformed': {
    ...RESETS,
    unit: (index) => headersFrame(at(index), [...requestFields('/public/1'), ['X-Upper', '1']]),
  },
  'streams reset because their body is shorter than its length': {
    ...RESETS,
    unit: (index) =>
      Buffer.concat([
        headersFrame(at(index), [...requestFields('/public/1', 'POST'), ['content-length', '9']], {
          end: false,
        }),
        dataFrame(at(index), 'x', { end: true }),
      ]),
  },
  'PING frames': { above: 250, below: 50, unit: (index) => pingFrame(index) },
  'SETTINGS frames': { above: 60, below: 15, unit: () => settingsFrame([[SETTING.enablePush, 0]]) },
  'empty SETTINGS frames': { above: 60, below: 15, unit: () => settingsFrame() },
  'empty DATA frames': { ...USELESS, open: openStream, unit: (_, stream) => dataFrame(stream, '') },
  'DATA frames that contain padding only': {
    ...USELESS,
    open: openStream,
    unit: (_, stream) => dataFrame(stream, '', { padding: 7 }),
  },
  'PRIORITY frames': { ...USELESS, unit: (index) => priorityFrame(at(index)) },
  'PRIORITY frames of one stream': {
    ...USELESS,
    open: openStream,
    unit: (_, stream) => priorityFrame(stream),
  },
  'frames of an unknown type': { ...USELESS, unit: (index) => frame(0x40 + (index % 64), 0xff, 0) },
  'PRIORITY_UPDATE frames': {
    ...USELESS,
    unit: () => frame(0x10, 0, 0, Buffer.from('\0\0\0\x01u=1', 'latin1')),
  },
  'WINDOW_UPDATE frames of closed streams': {
    ...USELESS,
    open: closedStream,
    unit: (_, stream) => windowUpdateFrame(stream, 1),
  },
  'RST_STREAM frames of closed streams': {
    ...USELESS,
    open: closedStream,
    unit: (_, stream) => resetFrame(stream),
  },
  'PING frames that acknowledge nothing': {
    ...USELESS,
    unit: () => frame(FRAME.ping, FLAG.ack, 0, Buffer.alloc(8)),
  },
  'SETTINGS frames that acknowledge nothing': { ...USELESS, unit: () => frame(FRAME.settings, FLAG.ack, 0) },
  'GOAWAY frames': { ...USELESS, unit: () => frame(FRAME.goAway, 0, 0, Buffer.alloc(8)) },
  'small DATA frames of a refused request': {
    ...USELESS,
    open: refusedStream,
    unit: (_, stream) => dataFrame(stream, 'x'),
  },
  'header sections of a refused request': {
    ...USELESS,
    open: refusedStream,
    unit: (_, stream) => headersFrame(stream, [['x-a', 'b']]),
  },
  'useless frames of different types, which share one allowance': {
    ...USELESS,
    open: openStream,
    unit: (index, stream) =>
      [priorityFrame(stream), frame(0x40, 0, 0), dataFrame(stream, ''), frame(0x50, 0, stream)][index % 4] ??
      Buffer.alloc(0),
  },
  // 200, 2 for each stream and 20 for each DATA frame received; what exceeds it uses the allowance of useless frames.
  'WINDOW_UPDATE frames of the connection': {
    above: 1_000,
    below: 300,
    unit: () => windowUpdateFrame(0, 1),
  },
  'WINDOW_UPDATE frames of a stream': {
    above: 1_000,
    below: 300,
    open: openStream,
    unit: (_, stream) => windowUpdateFrame(stream, 1),
  },
};

describe('allowances', () => {
  test.each(Object.keys(ALLOWANCES))('X07 a flood of %s closes the connection', async (name) => {
    const { above, unit, open } = ALLOWANCES[name] as Allowance;
    attack.upstream.reset();
    const client = await openClient();
    const stream = (await open?.(client)) ?? 0;
    await expectClosedForAbuse(
      client,
      Buffer.concat(Array.from({ length: above }, (_, index) => unit(index, stream))),
    );
  });

  test.each(Object.keys(ALLOWANCES))('some %s do not close the connection', async (name) => {
    const { below, unit, open } = ALLOWANCES[name] as Allowance;
    attack.upstream.reset();
    const before = getCloseReasons().length;
    const client = await openClient();
    const stream = (await open?.(client)) ?? 0;
    client.send(...Array.from({ length: below }, (_, index) => unit(index, stream)));
    await expectServed(client, at(1_000));
    expect(getCloseReasons().length).toBe(before);
  });

  test('X07 requests beyond the agreed number of streams are refused, and a flood of them closes the connection', async () => {
    attack.upstream.reset();
    const respond: (() => void)[] = [];
    attack.upstream.respondWith((socket) => {
      respond.push(() => socket.write('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'));
    });
    const client = await openClient();
    const streams = Array.from({ length: 100 }, () => client.request(GET));
    await until('the upstream has the agreed number of requests', () => respond.length === 100);
    expect(client.settings().get(SETTING.maxConcurrentStreams)).toBe(100);
    const refused = Array.from({ length: 50 }, () => client.request(GET));
    await client.waitForPong();
    expect(refused.map((stream) => client.outcome(stream))).toEqual(
      refused.map(() => ({ reset: CODE.refusedStream })),
    );
    expect([client.isOver(), respond.length]).toEqual([false, 100]);
    // The others are served, and then there is capacity again.
    for (const answer of respond.splice(0, 50)) answer();
    await client.until(() => streams.filter((stream) => client.endedCleanly(stream)).length === 50);
    const next = client.request(GET);
    await until('the upstream has one more request', () => respond.length === 51);
    for (const answer of respond.splice(0, 51)) answer();
    await client.until(() => [...streams, next].every((stream) => client.endedCleanly(stream)));

    const excessive = await openClient();
    const held = Array.from({ length: 100 }, () => excessive.request(GET));
    await until('the upstream has these requests', () => respond.length === 100);
    expect(held.length).toBe(100);
    const first = 2 * held.length + 1;
    await expectClosedForAbuse(
      excessive,
      Buffer.concat(Array.from({ length: RESETS.above }, (_, index) => get(first + 2 * index))),
    );
  });

  test('X07 a client that cancels 100 requests at once and continues is served; no request it cancelled keeps running', async () => {
    attack.upstream.reset();
    attack.upstream.respondWith(() => {});
    const client = await openClient();
    const streams = Array.from({ length: 100 }, () => client.request(GET));
    await until('the upstream has the requests', () => attack.upstream.requests.length === 100);
    client.send(...streams.map((stream) => resetFrame(stream)));
    await until('no upstream connection is in use', () => attack.upstream.openConnections() === 0);
    attack.upstream.reset();
    await expectServed(client);
  });

  test('X07 a SETTINGS frame with more than 32 entries closes the connection; one with 32 is acknowledged', async () => {
    const entries = (count: number): Buffer =>
      settingsFrame(Array.from({ length: count }, (_, index) => [0x60 + (index % 90), 1]));
    const isAcknowledged = (client: FrameClient): boolean =>
      client.frames.filter(({ type, flags }) => type === FRAME.settings && flags === FLAG.ack).length === 2;
    const below = await openClient();
    below.send(entries(32));
    await expectServed(below);
    expect(isAcknowledged(below)).toBe(true);
    await expectClosedForAbuse(await openClient(), entries(33));
  });

  test('X07 each PING and each SETTINGS frame is acknowledged once, in order', async () => {
    const client = await openClient();
    for (let index = 0; index < 10; index += 1) client.send(pingFrame(index), settingsFrame());
    await client.waitForPong();
    const pongs = client.frames.filter(({ type, flags }) => type === FRAME.ping && flags === FLAG.ack);
    expect(pongs.slice(0, 10).map(({ payload }) => payload.readUInt32BE(4))).toEqual(
      Array.from({ length: 10 }, (_, index) => index),
    );
    expect(
      client.frames.filter(({ type, flags }) => type === FRAME.settings && flags === FLAG.ack).length,
    ).toBe(11);
  });
});

describe('header blocks', () => {
  /** A header block in one HEADERS frame and `count` CONTINUATION frames. */
  function inContinuations(stream: number, block: Buffer, count: number): Buffer {
    const size = Math.ceil(block.length / (count + 1));
    const part = (index: number): Buffer => block.subarray(index * size, (index + 1) * size);
    return Buffer.concat([
      headersFrame(stream, part(0), { endHeaders: count === 0 }),
      ...Array.from({ length: count }, (_, index) =>
        frame(FRAME.continuation, index === count - 1 ? FLAG.endHeaders : 0, stream, part(index + 1)),
      ),
    ]);
  }

  test('X07 a head in more than 8 CONTINUATION frames closes the connection; 8 are accepted (CVE-2024-27316)', async () => {
    const below = await openClient();
    below.send(inContinuations(1, GET, 8));
    expect(await below.waitForEnd(1)).toEqual({ status: 200 });
    await expectServed(below, 3);
    await expectClosedForAbuse(await openClient(), inContinuations(1, GET, 9));
  });

  test('X07 empty CONTINUATION frames count, too', async () => {
    const empty = frame(FRAME.continuation, 0, 1);
    await expectClosedForAbuse(
      await openClient(),
      Buffer.concat([headersFrame(1, GET, { endHeaders: false }), repeat(empty, 9)]),
    );
  });

  test('X07 a header block above the limit gets a 431, and one of twice that closes the connection', async () => {
    const withLarge = (size: number): Buffer =>
      Buffer.concat([GET, literal('x-large', 'a'.repeat(size)), literal('x-kept', 'kept', 'incremental')]);
    const below = await openClient();
    below.send(inContinuations(1, withLarge(15_800), 3));
    expect(await below.waitForEnd(1)).toEqual({ status: 200 });
    const above = await openClient();
    above.send(inContinuations(1, withLarge(17_000), 3));
    expect(await above.waitForEnd(1)).toEqual({ status: 431 });
    await expectClosedForAbuse(await openClient(), inContinuations(1, withLarge(33_000), 3));
  });

  test('X07 the bytes of a header block are limited, whatever they decode to', async () => {
    // The Huffman code of this character has 28 bits.
    const withLongCodes = (length: number): Buffer =>
      Buffer.concat([GET, literal('x-large', '\xf9'.repeat(length), 'none', true)]);
    const below = await openClient();
    below.send(inContinuations(1, withLongCodes(9_000), 3));
    expect(await below.waitForEnd(1)).toEqual({ status: 200 });
    await expectClosedForAbuse(await openClient(), inContinuations(1, withLongCodes(10_000), 3));
  });

  const entry = (size: number): Buffer => literal('x-a', 'a'.repeat(size), 'incremental');

  test('X07 a header list above the limit gets a 431, and the connection stays in step', async () => {
    attack.upstream.reset();
    const client = await openClient();
    // 20 KB of fields from 4 KB of header block; the last entry is added to the table after the limit was exceeded.
    const block = Buffer.concat([
      GET,
      entry(3_000),
      repeat(indexed(NEWEST_ENTRY), 6),
      literal('x-late', 'after the limit', 'incremental'),
    ]);
    const refused = client.request(block);
    expect(await client.waitForEnd(refused)).toEqual({ status: 431 });
    expect(attack.upstream.requests).toEqual([]);
    const next = client.request(Buffer.concat([GET, indexed(NEWEST_ENTRY)]));
    expect(await client.waitForEnd(next)).toEqual({ status: 200 });
    expect(attack.upstream.requests[0]?.headers).toContainEqual(['x-late', 'after the limit']);
  });

  test('X07 a head with more than 100 fields gets a 431; one with 100 is served', async () => {
    const fields = (count: number): Field[] => [
      ...requestFields('/public/1'),
      ...Array.from({ length: count - 1 }, (_, index): Field => [`x-${index}`, '1']),
    ];
    const client = await openClient();
    // `:authority` becomes a field, too.
    expect(await client.waitForEnd(client.request(fields(100)))).toEqual({ status: 200 });
    expect(await client.waitForEnd(client.request(fields(101)))).toEqual({ status: 431 });
    await expectServed(client);
  });

  test('X07 a header list of more than twice the limit closes the connection (HPACK bomb)', async () => {
    const bomb = Buffer.concat([GET, entry(3_900), Buffer.alloc(12_000, 0x80 | NEWEST_ENTRY)]);
    attack.upstream.reset();
    await expectClosedForAbuse(await openClient(), headersFrame(1, bomb));
    // Small entries: many fields instead of many bytes.
    const many = Buffer.concat([GET, entry(1), Buffer.alloc(12_000, 0x80 | NEWEST_ENTRY)]);
    await expectClosedForAbuse(await openClient(), headersFrame(1, many));
  });

  test('X07 the same bomb in trailers closes the connection', async () => {
    attack.upstream.reset();
    const client = await openClient();
    const stream = await openStream(client);
    const bomb = Buffer.concat([entry(3_900), Buffer.alloc(12_000, 0x80 | NEWEST_ENTRY)]);
    await expectClosedForAbuse(client, headersFrame(stream, bomb));
  });

  test('X07 a dynamic table that is larger than agreed, or an index outside it, is a compression error', async () => {
    for (const block of [
      Buffer.concat([Buffer.from([0x3f, 0xe2, 0x1f]), GET]),
      Buffer.concat([GET, indexed(NEWEST_ENTRY)]),
      Buffer.concat([GET, indexed(0)]),
      // An entry that is larger than the table empties it.
      Buffer.concat([GET, literal('x-b', 'b', 'incremental'), entry(4_100), indexed(NEWEST_ENTRY)]),
      Buffer.concat([GET, Buffer.from([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f])]),
      GET.subarray(0, -1),
    ]) {
      const client = await openClient();
      client.send(headersFrame(1, block));
      await client.until(() => client.isOver());
      expect([block.toString('hex').slice(0, 40), client.goAway()]).toEqual([
        block.toString('hex').slice(0, 40),
        CODE.compressionError,
      ]);
      expect(client.outcome(1)).toBeUndefined();
    }
    await attack.expectHealthy();
  });
});

describe('legitimate clients', () => {
  test('X07 a client that acknowledges every DATA frame of a 5 MB download twice is served', async () => {
    attack.upstream.reset();
    const body = Buffer.alloc(5_000_000, 'x');
    attack.upstream.respondWith((socket) => {
      socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n`);
      socket.write(body);
    });
    const client = await openClient({ updateWindows: true });
    const streams = [client.request(GET), client.request(GET)];
    for (const stream of streams) {
      expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
      expect(client.bodyLength(stream)).toBe(body.length);
    }
    attack.upstream.reset();
    await expectServed(client);
  });

  test('X07 a client that uploads in small padded frames is served', async () => {
    attack.upstream.reset();
    const client = await openClient();
    const stream = client.request(
      [...requestFields('/files/1', 'POST'), ['authorization', `Bearer ${attack.token}`]],
      { end: false },
    );
    for (let sent = 0; sent < 5_000; sent += 500)
      client.send(repeat(dataFrame(stream, 'x', { padding: 9 }), 500));
    client.send(dataFrame(stream, 'y', { end: true, padding: 255 }));
    expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
    expect(attack.upstream.requests.map(({ body }) => body)).toEqual([`${'x'.repeat(5_000)}y`]);
    // Padding uses the window (RFC 9113 §6.9.1), so it is credited like the rest.
    await expectServed(client);
  });

  test('X07 a client whose upload in small frames is refused while most of it is on its way stays connected', async () => {
    const client = await openClient();
    const refused = client.request(requestFields('/files/1', 'POST'), { end: false });
    // As much as the window of the stream allows, and sent before the client has read the response.
    for (let frames = 0; frames < 320; frames += 1) client.send(dataFrame(refused, 'x'.repeat(800)));
    expect(await client.waitForOutcome(refused)).toEqual({ status: 401 });
    await expectServed(client);
  });

  test('X07 a client that opens 1,000 streams one after the other, each with its window updates, is served', async () => {
    attack.upstream.reset();
    const client = await openClient({ updateWindows: true });
    for (let batch = 0; batch < 20; batch += 1) {
      const streams = Array.from({ length: 50 }, () => client.request(GET));
      await client.until(() => streams.every((stream) => client.endedCleanly(stream)));
      expect(streams.map((stream) => client.outcome(stream)?.status)).toEqual(streams.map(() => 200));
    }
    await expectServed(client);
  });
});

describe('memory', () => {
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
    const streams = Array.from({ length: 8 }, (_, index) =>
      client.request(requestFields(`/public/${index}`)),
    );
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
});

describe('uploads that no upstream takes', () => {
  const MiB = 1_048_576;
  /** As long as the upstream takes nothing. */
  const STREAM_WINDOW = 65_535;

  /** A proxy whose only upstream connection is in use, and a client that uploads as much as its windows allow. */
  async function startBusyProxy() {
    const upstream = await startRecordingUpstream();
    openClients.push({ destroy: () => void upstream.close() });
    const taking = await listenTcp(createServer((socket) => socket.resume()));
    openClients.push({ destroy: () => void taking.close() });
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
    openClients.push({ destroy: () => void proxy.close() });
    let release = (): void => {};
    upstream.respondWith((socket) => {
      release = () => void socket.write('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n');
    });
    const client = await frameClient(proxy.port, { ca: proxy.ca.pem });
    openClients.push(client);
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
    for (let sent = 0; sent <= STREAM_WINDOW + 65_536; sent += part.length)
      client.send(dataFrame(excessive, part));
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
});

describe('stream ids', () => {
  test('X07 a connection whose stream ids are nearly used up is closed gracefully', async () => {
    const client = await openClient();
    const early = client.request(GET, { stream: 1_000_001 });
    expect(await client.waitForEnd(early)).toEqual({ status: 200 });
    await client.waitForPong();
    expect(client.isOver()).toBe(false);
    const late = client.request(GET, { stream: 0x4000_0001 });
    expect(await client.waitForEnd(late)).toEqual({ status: 200 });
    await client.until(() => client.isOver());
    expect(client.goAway()).toBe(CODE.noError);
    expect(client.goAways().every(({ lastStream }) => lastStream >= late)).toBe(true);
    await client.until(() => client.closed());
    await attack.expectHealthy();
  });

  test('X07 a stream id that is even, zero, lower than the previous one, or of a closed stream, closes the connection', async () => {
    const send = async (first: number, second: number): Promise<FrameClient> => {
      const client = await openClient();
      if (first > 0) expect(await client.waitForEnd(client.request(GET, { stream: first }))).toBeDefined();
      client.send(get(second));
      await client.until(() => client.isOver());
      return client;
    };
    expect((await send(0, 2)).goAway()).toBe(CODE.protocolError);
    expect((await send(1, 0)).goAway()).toBe(CODE.protocolError);
    expect((await send(5, 4)).goAway()).toBe(CODE.protocolError);
    for (const second of [3, 5])
      expect([CODE.protocolError, CODE.streamClosed]).toContain((await send(5, second)).goAway());
  });

  test('X07 a second head on a stream whose request has ended resets it, and is not a second request', async () => {
    attack.upstream.reset();
    attack.upstream.respondWith(() => {});
    const client = await openClient();
    const stream = client.request(GET);
    await until('the upstream has the request', () => attack.upstream.requests.length === 1);
    client.send(get(stream));
    expect(await client.waitForOutcome(stream)).toEqual({ reset: CODE.streamClosed });
    expect(attack.upstream.requests.length).toBe(1);
    attack.upstream.reset();
    await expectServed(client);
  });
});
