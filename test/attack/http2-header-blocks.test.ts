import { expect, test } from 'vitest';
import { indexed, literal, NEWEST_ENTRY } from '../support/hpack.ts';
import { CODE, type Field, FLAG, FRAME, frame, headersFrame, repeat, requestFields } from '../support/http2-frames.ts';
import { GET, useHttp2Attack } from './http2-attack.ts';

/** X07: the size and the number of frames, bytes and fields of a header section. */
const { attack, expectClosedForAbuse, expectServed, openClient, openStream } = useHttp2Attack();

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
