import { afterEach, expect, test } from 'vitest';
import { until } from '../support/serve-process.ts';
import { useAttackGateway } from './attack-gateway.ts';
import {
  FLAG,
  FRAME,
  type FrameClient,
  frame,
  frameClient,
  headerBlock,
  requestFields,
  uint32,
} from './h2-frames.ts';

/**
 * Row X07: floods over HTTP/2. Each ends with the end of its connection, few requests at the upstream, little memory
 * used, and other clients served.
 */
const attack = useAttackGateway((settings) => ({ ...settings, log: { level: 'info' } }));

const opened: FrameClient[] = [];
afterEach(() => {
  for (const client of opened.splice(0)) client.destroy();
});

async function client(): Promise<FrameClient> {
  const { gateway } = attack;
  const made = await frameClient(gateway.port, { ca: gateway.ca.pem });
  opened.push(made);
  return made;
}

const MiB = 1_048_576;

/** Sends in portions, as fast as the gateway reads, until it ends the connection. */
async function flood(one: FrameClient, times: number, portion: (from: number, to: number) => Buffer) {
  const size = 500;
  for (let at = 0; at < times && !one.isOver(); at += size) {
    const bytes = portion(at, Math.min(times, at + size));
    if (!one.socket.write(bytes))
      await new Promise<void>((resolve) => {
        one.socket.once('drain', resolve).once('close', () => resolve());
      });
    await new Promise(setImmediate);
  }
}

/** The gateway ends the connection of this attack, and goes on. */
async function expectConnectionClosed(run: (one: FrameClient) => Promise<void>): Promise<void> {
  attack.upstream.reset();
  const before = process.memoryUsage().rss;
  const one = await client();
  await run(one);
  await one.until(() => one.closed());
  expect(attack.upstream.requests.length).toBeLessThanOrEqual(200);
  await attack.expectHealthy();
  // Of this process, which is the client, too.
  expect(process.memoryUsage().rss - before).toBeLessThan(128 * MiB);
}

const parts = (from: number, to: number, make: (index: number) => Buffer): Buffer =>
  Buffer.concat(Array.from({ length: to - from }, (_, index) => make(from + index)));

const HEAD = headerBlock(requestFields('/public/1'));
const get = (stream: number): Buffer => frame(FRAME.headers, FLAG.endHeaders | FLAG.endStream, stream, HEAD);
const post = (stream: number): Buffer => frame(FRAME.headers, FLAG.endHeaders, stream, HEAD);
const CANCEL = uint32(8);

test.each([
  ['CANCEL', CANCEL],
  ['NO_ERROR', uint32(0)],
])(
  'X07 rapid reset: twenty thousand requests, each reset at once by %s (CVE-2023-44487)',
  async (_, code) => {
    await expectConnectionClosed((one) =>
      flood(one, 20_000, (from, to) =>
        parts(from, to, (index) =>
          Buffer.concat([get(index * 2 + 1), frame(FRAME.reset, 0, index * 2 + 1, code)]),
        ),
      ),
    );
  },
);

test.each([
  ['CANCEL', CANCEL],
  ['NO_ERROR', uint32(0)],
])(
  'X07 rapid reset by %s in small portions, so that each request is seen before its reset',
  async (_, code) => {
    await expectConnectionClosed(async (one) => {
      for (let index = 0; index < 2_000 && !one.isOver(); index += 1) {
        one.send(get(index * 2 + 1));
        await new Promise(setImmediate);
        one.send(frame(FRAME.reset, 0, index * 2 + 1, code));
        await new Promise(setImmediate);
      }
    });
  },
);

test('X07 made to reset: five thousand requests, each made faulty, so that the gateway resets it (CVE-2025-8671)', async () => {
  await expectConnectionClosed((one) =>
    flood(one, 5_000, (from, to) =>
      parts(from, to, (index) =>
        Buffer.concat([get(index * 2 + 1), frame(FRAME.windowUpdate, 0, index * 2 + 1, uint32(0))]),
      ),
    ),
  );
});

test('X07 made to reset by windows beyond their limit', async () => {
  await expectConnectionClosed((one) =>
    flood(one, 5_000, (from, to) =>
      parts(from, to, (index) => {
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

test('X07 a head that is continued without end (CVE-2024-27316)', async () => {
  const piece = headerBlock([['x-a', 'a'.repeat(200)]]);
  await expectConnectionClosed(async (one) => {
    one.send(frame(FRAME.headers, FLAG.endStream, 1, HEAD));
    await flood(one, 20_000, (from, to) => parts(from, to, () => frame(FRAME.continuation, 0, 1, piece)));
  });
});

test('X07 empty continuations', async () => {
  await expectConnectionClosed(async (one) => {
    one.send(frame(FRAME.headers, FLAG.endStream, 1, HEAD));
    await flood(one, 20_000, (from, to) => parts(from, to, () => frame(FRAME.continuation, 0, 1)));
  });
});

test('X07 fifty thousand pings', async () => {
  await expectConnectionClosed((one) =>
    flood(one, 50_000, (from, to) => parts(from, to, () => frame(FRAME.ping, 0, 0, Buffer.alloc(8)))),
  );
});

test('X07 twenty thousand settings', async () => {
  const one = Buffer.concat([Buffer.from([0, 3]), uint32(100)]);
  await expectConnectionClosed((client) =>
    flood(client, 20_000, (from, to) => parts(from, to, () => frame(FRAME.settings, 0, 0, one))),
  );
});

test('X07 header blocks that are not HPACK', async () => {
  for (const junk of [
    Buffer.from([0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
    Buffer.from([0x80]),
    Buffer.from([0x3f, 0xff, 0xff, 0xff, 0x7f]),
    Buffer.from([0x00, 0x7f, 0xff, 0xff, 0xff, 0x7f]),
    Buffer.from([0xbe, 0xbf, 0xc0]),
  ])
    await expectConnectionClosed(async (one) => {
      one.send(frame(FRAME.headers, FLAG.endHeaders | FLAG.endStream, 1, junk));
    });
});

test('X07 an indexed field used ten thousand times in one head', async () => {
  // One entry of 3,000 bytes, then a reference of one byte to it, again and again.
  const entry = Buffer.concat([
    Buffer.from([0x40, 3]),
    Buffer.from('x-a'),
    Buffer.from([0x7f, 0xb9, 0x16]),
    Buffer.alloc(3_000, 'a'),
  ]);
  const block = Buffer.concat([HEAD, entry, Buffer.alloc(10_000, 0xbe)]);
  attack.upstream.reset();
  const one = await client();
  one.send(frame(FRAME.headers, FLAG.endHeaders | FLAG.endStream, 1, block));
  await one.until(() => one.isOver() || one.outcome(1) !== undefined);
  expect(one.outcome(1)?.status ?? 431).toBe(431);
  expect(attack.upstream.requests).toEqual([]);
  await attack.expectHealthy();
});

test('X07 the connection’s window beyond its limit', async () => {
  await expectConnectionClosed(async (one) => one.send(frame(FRAME.windowUpdate, 0, 0, uint32(0x7fff_ffff))));
});

test('X07 frames that are too large, on streams that are not open, or not HTTP/2 at all', async () => {
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
  for (const bytes of cases) await expectConnectionClosed(async (one) => one.send(bytes));
});

test('X07 a hundred concurrent requests get responses; one more than SETTINGS allows closes the connection and starts nothing', async () => {
  attack.upstream.reset();
  const waiting: (() => void)[] = [];
  attack.upstream.respondWith((socket) => {
    waiting.push(() => socket.write('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'));
  });
  const [fair, greedy] = [await client(), await client()];
  const streams = Array.from({ length: 100 }, () => fair.request(requestFields('/public/1')));
  await until('all requests are at the upstream', () => waiting.length === 100);
  for (const respond of waiting) respond();
  await fair.until(() => streams.every((stream) => fair.endedCleanly(stream)));
  expect(streams.map((stream) => fair.outcome(stream)?.status)).toEqual(streams.map(() => 200));

  for (let index = 0; index < 101; index += 1) greedy.request(requestFields('/public/1'));
  await greedy.until(() => greedy.isOver());
  expect(waiting.length).toBeLessThanOrEqual(200);
  await attack.expectHealthy();
});
