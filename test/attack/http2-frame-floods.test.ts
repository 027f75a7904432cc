import { expect, test } from 'vitest';
import {
  CODE,
  dataFrame,
  FLAG,
  FRAME,
  type FrameClient,
  frame,
  headersFrame,
  pingFrame,
  priorityFrame,
  requestFields,
  resetFrame,
  SETTING,
  settingsFrame,
  windowUpdateFrame,
} from '../support/http2-frames.ts';
import { until } from '../support/until.ts';
import { GET, get, post, useHttp2Attack } from './http2-attack.ts';

/** X07: frames that a client may send now and then, and requests beyond the agreed number. */
const { attack, expectClosedForAbuse, expectServed, getCloseReasons, openClient, openStream } = useHttp2Attack();

/** The client and the stream of a request that has ended. */
async function closedStream(client: FrameClient): Promise<number> {
  const stream = client.request(GET);
  await client.waitForEnd(stream);
  return stream;
}

/** The stream of an upload whose response arrived before its end. */
async function answeredStream(client: FrameClient): Promise<number> {
  const stream = client.request(requestFields('/files/1', 'POST'), { end: false });
  expect(await client.waitForEnd(stream)).toEqual({ status: 401 });
  return stream;
}

/** The stream of an upload that was reset because of an error. */
async function resetStream(client: FrameClient): Promise<number> {
  const stream = await openStream(client);
  client.send(windowUpdateFrame(stream, 0));
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
  'small DATA frames after the response': {
    ...USELESS,
    open: answeredStream,
    unit: (_, stream) => dataFrame(stream, 'x'),
  },
  'small DATA frames of a stream that was reset': {
    ...USELESS,
    open: resetStream,
    unit: (_, stream) => dataFrame(stream, 'x'),
  },
  'DATA frames that end a stream that was reset': {
    ...USELESS,
    open: resetStream,
    unit: (_, stream) => dataFrame(stream, '', { end: true }),
  },
  'header sections of a stream that was reset': {
    ...USELESS,
    open: resetStream,
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

test.each(Object.keys(ALLOWANCES))('X07 a flood of %s closes the connection', async (name) => {
  const { above, unit, open } = ALLOWANCES[name] as Allowance;
  attack.upstream.reset();
  const client = await openClient();
  const stream = (await open?.(client)) ?? 0;
  await expectClosedForAbuse(client, Buffer.concat(Array.from({ length: above }, (_, index) => unit(index, stream))));
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
  expect(refused.map((stream) => client.outcome(stream))).toEqual(refused.map(() => ({ reset: CODE.refusedStream })));
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
  expect(client.frames.filter(({ type, flags }) => type === FRAME.settings && flags === FLAG.ack).length).toBe(11);
});
