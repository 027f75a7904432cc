import { afterEach, expect, test } from 'vitest';
import {
  CODE,
  FLAG,
  FRAME,
  type FrameClient,
  frame,
  frameClient,
  headerBlock,
  requestFields,
  uint32,
} from '../support/http2-frames.ts';
import { until } from '../support/serve-process.ts';
import { useAttackGateway } from './attack-gateway.ts';

/**
 * Row X07: HTTP/2 floods. After each, the connection is closed, few requests have reached the upstream, little memory is
 * used, and other clients are served.
 */
const attack = useAttackGateway((settings) => ({ ...settings, log: { level: 'info' } }));

const openClients: FrameClient[] = [];
afterEach(() => {
  for (const client of openClients.splice(0)) client.destroy();
});

async function openClient(): Promise<FrameClient> {
  const { gateway } = attack;
  const client = await frameClient(gateway.port, { ca: gateway.ca.pem });
  openClients.push(client);
  return client;
}

const MiB = 1_048_576;

/** Sends portions as fast as the gateway reads, until it closes the connection. */
async function flood(client: FrameClient, times: number, portion: (from: number, to: number) => Buffer) {
  const size = 500;
  for (let at = 0; at < times && !client.isOver(); at += size) {
    const bytes = portion(at, Math.min(times, at + size));
    if (!client.socket.write(bytes))
      await new Promise<void>((resolve) => {
        client.socket.once('drain', resolve).once('close', () => resolve());
      });
    await new Promise(setImmediate);
  }
}

/** Expects that the gateway closes the connection of this attack and stays healthy. */
async function expectConnectionClosed(run: (client: FrameClient) => Promise<void>): Promise<void> {
  attack.upstream.reset();
  const before = process.memoryUsage().rss;
  const client = await openClient();
  await run(client);
  await client.until(() => client.closed());
  expect(attack.upstream.requests.length).toBeLessThanOrEqual(200);
  await attack.expectHealthy();
  // Includes the memory of the client, which runs in this process.
  expect(process.memoryUsage().rss - before).toBeLessThan(128 * MiB);
}

const concatFrames = (from: number, to: number, make: (index: number) => Buffer): Buffer =>
  Buffer.concat(Array.from({ length: to - from }, (_, index) => make(from + index)));

const HEAD = headerBlock(requestFields('/public/1'));
const get = (stream: number): Buffer => frame(FRAME.headers, FLAG.endHeaders | FLAG.endStream, stream, HEAD);
const post = (stream: number): Buffer => frame(FRAME.headers, FLAG.endHeaders, stream, HEAD);
const CANCEL = uint32(8);

test.each([
  ['CANCEL', CANCEL],
  ['NO_ERROR', uint32(0)],
])('X07 rapid reset: 20,000 requests, each reset at once with %s (CVE-2023-44487)', async (_, code) => {
  await expectConnectionClosed((client) =>
    flood(client, 20_000, (from, to) =>
      concatFrames(from, to, (index) =>
        Buffer.concat([get(index * 2 + 1), frame(FRAME.reset, 0, index * 2 + 1, code)]),
      ),
    ),
  );
});

test.each([
  ['CANCEL', CANCEL],
  ['NO_ERROR', uint32(0)],
])('X07 rapid reset with %s, where each request is read before its reset', async (_, code) => {
  await expectConnectionClosed(async (client) => {
    for (let index = 0; index < 2_000 && !client.isOver(); index += 1) {
      client.send(get(index * 2 + 1));
      await new Promise(setImmediate);
      client.send(frame(FRAME.reset, 0, index * 2 + 1, code));
      await new Promise(setImmediate);
    }
  });
});

test('X07 MadeYouReset: 5,000 requests that the gateway must reset because of a protocol error (CVE-2025-8671)', async () => {
  await expectConnectionClosed((client) =>
    flood(client, 5_000, (from, to) =>
      concatFrames(from, to, (index) =>
        Buffer.concat([get(index * 2 + 1), frame(FRAME.windowUpdate, 0, index * 2 + 1, uint32(0))]),
      ),
    ),
  );
});

test('X07 MadeYouReset by overflowing stream windows', async () => {
  await expectConnectionClosed((client) =>
    flood(client, 5_000, (from, to) =>
      concatFrames(from, to, (index) => {
        const stream = index * 2 + 1;
        return Buffer.concat([
          post(stream),
          frame(FRAME.windowUpdate, 0, stream, uint32(0x7fff_ffff)),
          frame(FRAME.windowUpdate, 0, stream, uint32(0x7fff_ffff)),
        ]);
      }),
    ),
  );
});

test('X07 an endless header block in CONTINUATION frames (CVE-2024-27316)', async () => {
  const piece = headerBlock([['x-a', 'a'.repeat(200)]]);
  await expectConnectionClosed(async (client) => {
    client.send(frame(FRAME.headers, FLAG.endStream, 1, HEAD));
    await flood(client, 20_000, (from, to) => concatFrames(from, to, () => frame(FRAME.continuation, 0, 1, piece)));
  });
});

test('X07 empty CONTINUATION frames', async () => {
  await expectConnectionClosed(async (client) => {
    client.send(frame(FRAME.headers, FLAG.endStream, 1, HEAD));
    await flood(client, 20_000, (from, to) => concatFrames(from, to, () => frame(FRAME.continuation, 0, 1)));
  });
});

test('X07 50,000 PING frames', async () => {
  await expectConnectionClosed((client) =>
    flood(client, 50_000, (from, to) => concatFrames(from, to, () => frame(FRAME.ping, 0, 0, Buffer.alloc(8)))),
  );
});

test('X07 20,000 SETTINGS frames', async () => {
  const setting = Buffer.concat([Buffer.from([0, 3]), uint32(100)]);
  await expectConnectionClosed((client) =>
    flood(client, 20_000, (from, to) => concatFrames(from, to, () => frame(FRAME.settings, 0, 0, setting))),
  );
});

test('X07 header blocks that are not valid HPACK', async () => {
  for (const junk of [
    Buffer.from([0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
    Buffer.from([0x80]),
    Buffer.from([0x3f, 0xff, 0xff, 0xff, 0x7f]),
    Buffer.from([0x00, 0x7f, 0xff, 0xff, 0xff, 0x7f]),
    Buffer.from([0xbe, 0xbf, 0xc0]),
  ])
    await expectConnectionClosed(async (client) => {
      client.send(frame(FRAME.headers, FLAG.endHeaders | FLAG.endStream, 1, junk));
    });
});

test('X07 an indexed field referenced 10,000 times in one head', async () => {
  // One entry of 3,000 bytes, then one-byte references to it.
  const entry = Buffer.concat([
    Buffer.from([0x40, 3]),
    Buffer.from('x-a'),
    Buffer.from([0x7f, 0xb9, 0x16]),
    Buffer.alloc(3_000, 'a'),
  ]);
  const block = Buffer.concat([HEAD, entry, Buffer.alloc(10_000, 0xbe)]);
  attack.upstream.reset();
  const client = await openClient();
  client.send(frame(FRAME.headers, FLAG.endHeaders | FLAG.endStream, 1, block));
  await client.until(() => client.isOver() || client.outcome(1) !== undefined);
  expect(client.outcome(1)?.status ?? 431).toBe(431);
  expect(attack.upstream.requests).toEqual([]);
  await attack.expectHealthy();
});

test('X07 a connection window overflow', async () => {
  await expectConnectionClosed(async (client) => client.send(frame(FRAME.windowUpdate, 0, 0, uint32(0x7fff_ffff))));
});

test('X07 frames that are too large, on streams that are not open, or not HTTP/2', async () => {
  const cases: readonly Buffer[] = [
    frame(FRAME.data, 0, 1, Buffer.alloc(20_000)),
    frame(FRAME.data, 0, 2, Buffer.from('x')),
    frame(FRAME.headers, FLAG.endHeaders | FLAG.endStream, 2, HEAD),
    frame(FRAME.push, FLAG.endHeaders, 1, Buffer.concat([uint32(2), HEAD])),
    frame(FRAME.settings, FLAG.ack, 0, Buffer.alloc(6)),
    frame(FRAME.ping, 0, 0, Buffer.alloc(3)),
    frame(FRAME.continuation, FLAG.endHeaders, 1, HEAD),
    Buffer.alloc(200, 0xff),
  ];
  for (const bytes of cases) await expectConnectionClosed(async (client) => client.send(bytes));
});

test('X07 a hundred concurrent requests get responses; one more than SETTINGS allows is refused, and starts nothing', async () => {
  attack.upstream.reset();
  const waiting: (() => void)[] = [];
  attack.upstream.respondWith((socket) => {
    waiting.push(() => socket.write('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'));
  });
  const [compliant, excessive] = [await openClient(), await openClient()];
  const streams = Array.from({ length: 100 }, () => compliant.request(requestFields('/public/1')));
  await until('the upstream has all requests', () => waiting.length === 100);
  for (const respond of waiting) respond();
  await compliant.until(() => streams.every((stream) => compliant.endedCleanly(stream)));
  expect(streams.map((stream) => compliant.outcome(stream)?.status)).toEqual(streams.map(() => 200));

  const requests = Array.from({ length: 101 }, () => excessive.request(requestFields('/public/1')));
  const last = requests.at(-1) ?? 0;
  await excessive.until(() => excessive.outcome(last) !== undefined);
  expect(excessive.outcome(last)).toEqual({ reset: CODE.refusedStream });
  await until('the upstream has the others', () => waiting.length === 200);
  expect(excessive.isOver()).toBe(false);
  await attack.expectHealthy();
});
