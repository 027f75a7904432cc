import { afterAll, beforeAll, expect, test } from 'vitest';
import { EMPTY_TABLE_UPDATE, encodeResponseFields } from '../../src/http2/hpack-encoder.ts';
import { randomBelow } from '../fuzz/mutations.ts';
import { type Field, ReferenceDecoder } from '../support/hpack.ts';
import { type Nghttp2Client, startNghttp2Client } from '../support/nghttp2-client.ts';

let client: Nghttp2Client;
beforeAll(async () => {
  client = await startNghttp2Client();
});
afterAll(() => client.close());

const encode = (status: number, fields: readonly Field[]): Buffer => encodeResponseFields(status, fields.flat());

test('nghttp2 decodes 300 responses to the same fields', async () => {
  const below = randomBelow(3);
  const pick = <T>(list: readonly T[]): T => list[below(list.length)] as T;
  const reference = new ReferenceDecoder();
  for (let response = 0; response < 300; response += 1) {
    const status = pick([200, 204, 206, 304, 400, 401, 404, 431, 500, 503, 599]);
    const fields = Array.from(
      { length: below(20) },
      (): Field => [
        pick(['content-type', 'set-cookie', 'vary', 'x-a', 'etag', 'cache-control', 'location', 'accept-ranges']),
        Array.from({ length: pick([0, 1, 10, 126, 127, 128, 300]) }, () =>
          String.fromCharCode(pick([0x21 + below(0x5e), 0x80 + below(0x80)])),
        ).join(''),
      ],
    );
    const expected = [[':status', String(status)], ...fields];
    const block = encode(status, fields);
    expect(await client.decode(block)).toEqual(expected);
    expect(reference.decode(block)).toEqual(expected);
    // Nothing was added to the table of the client.
    expect(reference.entries).toBe(0);
  }
});

test('fields of the static table, lengths of several bytes and fields above 16 KiB are decoded', async () => {
  for (const fields of [
    [['accept-encoding', 'gzip, deflate']],
    [['www-authenticate', 'Bearer realm="gatehouse"']],
    [['x-long', 'x'.repeat(16_500)]],
    [['x-name-that-is-long'.repeat(10), 'value']],
    [
      ['set-cookie', 'a=1'],
      ['set-cookie', 'a=1'],
    ],
  ] as const satisfies (readonly Field[])[])
    expect(await client.decode(encode(200, fields))).toEqual([[':status', '200'], ...fields]);
});

test('the names of fields are written in lower case, and connection-specific fields are omitted', async () => {
  const fields: Field[] = [
    ['Content-Type', 'text/plain'],
    ['Connection', 'keep-alive'],
    ['keep-alive', 'timeout=5'],
    ['Proxy-Connection', 'x'],
    ['Transfer-Encoding', 'chunked'],
    ['Upgrade', 'h2c'],
    ['X-Kept', 'yes'],
  ];
  expect(await client.decode(encode(200, fields))).toEqual([
    [':status', '200'],
    ['content-type', 'text/plain'],
    ['x-kept', 'yes'],
  ]);
});

test('the update of the table size before a block is accepted', async () => {
  const block = Buffer.concat([Buffer.from([EMPTY_TABLE_UPDATE]), encode(200, [['x-a', 'b']])]);
  expect(await client.decode(block)).toEqual([
    [':status', '200'],
    ['x-a', 'b'],
  ]);
});
