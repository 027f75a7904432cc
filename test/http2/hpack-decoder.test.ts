import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { HpackDecoder } from '../../src/http2/hpack-decoder.ts';
import { decodeHuffman } from '../../src/http2/huffman.ts';
import { randomBelow } from '../fuzz/mutations.ts';
import {
  encodeHuffman,
  encodeInteger,
  type Field,
  headerBlock,
  indexed,
  literal,
  NEWEST_ENTRY,
  tableSizeUpdate,
} from '../support/hpack.ts';
import { type Nghttp2Client, startNghttp2Client } from '../support/nghttp2-client.ts';

/** The fields of a block, or why there are none. */
function decode(decoder: HpackDecoder, block: Buffer): Field[] | 'malformed' | 'too_large' {
  const fields: Field[] = [];
  const outcome = decoder.decode(block, 0, block.length, {
    add({ name, value }) {
      fields.push([name, value]);
      return true;
    },
  });
  return outcome === 'complete' ? fields : outcome;
}

const hex = (text: string): Buffer => Buffer.from(text.replaceAll(' ', ''), 'hex');

describe('the examples of RFC 7541', () => {
  const GET: readonly Field[] = [
    [':method', 'GET'],
    [':scheme', 'http'],
    [':path', '/'],
    [':authority', 'www.example.com'],
  ];
  const CUSTOM: readonly Field[] = [
    [':method', 'GET'],
    [':scheme', 'https'],
    [':path', '/index.html'],
    [':authority', 'www.example.com'],
    ['custom-key', 'custom-value'],
  ];

  test.each([
    ['C.2.1', '400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572', ['custom-key', 'custom-header']],
    ['C.2.2', '040c 2f73 616d 706c 652f 7061 7468', [':path', '/sample/path']],
    ['C.2.3', '1008 7061 7373 776f 7264 0673 6563 7265 74', ['password', 'secret']],
    ['C.2.4', '82', [':method', 'GET']],
  ] as const)('%s: a single field', (_, block, field) => {
    expect(decode(new HpackDecoder(), hex(block))).toEqual([field]);
  });

  test.each([
    [
      'C.3, without Huffman coding',
      '8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d',
      '8286 84be 5808 6e6f 2d63 6163 6865',
      '8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65',
    ],
    [
      'C.4, with Huffman coding',
      '8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff',
      '8286 84be 5886 a8eb 1064 9cbf',
      '8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf',
    ],
  ])('%s: three requests on one connection', (_, first, second, third) => {
    const decoder = new HpackDecoder();
    expect(decode(decoder, hex(first))).toEqual(GET);
    expect(decode(decoder, hex(second))).toEqual([...GET, ['cache-control', 'no-cache']]);
    expect(decode(decoder, hex(third))).toEqual(CUSTOM);
  });

  test('C.6: entries are evicted from a table of 256 bytes', () => {
    const decoder = new HpackDecoder();
    const fields = (status: string, date: string, ...more: Field[]): Field[] => [
      [':status', status],
      ['cache-control', 'private'],
      ['date', date],
      ['location', 'https://www.example.com'],
      ...more,
    ];
    const first =
      '4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3';
    const third =
      '88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07';
    const date = (seconds: string): string => `Mon, 21 Oct 2013 20:13:${seconds} GMT`;
    expect(decode(decoder, Buffer.concat([tableSizeUpdate(256), hex(first)]))).toEqual(fields('302', date('21')));
    expect(decode(decoder, hex('4883 640e ffc1 c0bf'))).toEqual(fields('307', date('21')));
    expect(decode(decoder, hex(third))).toEqual(
      fields(
        '200',
        date('22'),
        ['content-encoding', 'gzip'],
        ['set-cookie', 'foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1'],
      ),
    );
  });
});

describe('malformed blocks', () => {
  const LITERAL = literal('x-a', 'b');
  const MALFORMED: Readonly<Record<string, Buffer>> = {
    'the index zero': indexed(0),
    'an index after the static table, while the dynamic table is empty': indexed(NEWEST_ENTRY),
    'the name of an entry that does not exist': literal(NEWEST_ENTRY, 'x'),
    'an index that does not end': Buffer.from([0xff, 0x80]),
    'an index of more than four further bytes': Buffer.from([0xff, 0x80, 0x80, 0x80, 0x80, 0x00]),
    'an index above 2³²': Buffer.from([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f]),
    'a literal without a name': Buffer.from([0x00]),
    'a literal without a value': LITERAL.subarray(0, 5),
    'a value that is longer than the block': LITERAL.subarray(0, -1),
    'a name that is longer than the block': Buffer.from([0x40, 0x05, 0x61]),
    'a length of 2²⁸': Buffer.concat([Buffer.from([0x00, 0x01, 0x61]), encodeInteger(2 ** 28, 7)]),
    'a table that is larger than agreed': Buffer.concat([tableSizeUpdate(4_097), LITERAL]),
    'a change of the table after a field': Buffer.concat([LITERAL, tableSizeUpdate(0)]),
    'three changes of the table': Buffer.concat([tableSizeUpdate(0), tableSizeUpdate(9), tableSizeUpdate(10)]),
    'an entry that was evicted by a change of the table': Buffer.concat([
      literal('x-a', 'b', 'incremental'),
      literal('x-b', 'c'.repeat(4_090), 'incremental'),
      indexed(NEWEST_ENTRY),
    ]),
    // RFC 7541 §5.2.
    'EOS within a string': Buffer.concat([Buffer.from([0x00, 0x01, 0x61, 0x84]), Buffer.alloc(4, 0xff)]),
    'padding of eight bits': Buffer.from([0x00, 0x01, 0x61, 0x82, 0x07, 0xff]),
    'padding that is not the beginning of EOS': Buffer.from([0x00, 0x01, 0x61, 0x81, 0x00]),
    'a code that does not end': Buffer.from([0x00, 0x01, 0x61, 0x82, 0xff, 0xfe]),
  };

  test.each(Object.entries(MALFORMED))('%s is malformed', (_, block) => {
    expect(decode(new HpackDecoder(), block)).toBe('malformed');
    // Also after valid fields.
    expect(decode(new HpackDecoder(), Buffer.concat([LITERAL, block]))).toBe('malformed');
  });

  test('decoding stops where the receiver of the fields has enough', () => {
    let added = 0;
    const block = Buffer.concat([LITERAL, LITERAL, LITERAL]);
    const outcome = new HpackDecoder().decode(block, 0, block.length, { add: () => (added += 1) < 2 });
    expect([outcome, added]).toEqual(['too_large', 2]);
  });

  test('nothing outside the given range of a buffer is read', () => {
    const block = Buffer.concat([LITERAL, LITERAL]);
    const fields: string[] = [];
    const sink = { add: ({ value }: { readonly value: string }) => fields.push(value) > 0 };
    for (let length = 1; length < LITERAL.length; length += 1)
      expect(new HpackDecoder().decode(block, 0, length, sink)).toBe('malformed');
    expect(new HpackDecoder().decode(block, LITERAL.length, block.length, sink)).toBe('complete');
    expect(fields).toEqual(['b']);
  });
});

describe('the dynamic table', () => {
  test('holds 128 entries without name and value, and no more', () => {
    const decoder = new HpackDecoder();
    const entries = Array.from({ length: 200 }, () => literal('', '', 'incremental'));
    expect(decode(decoder, Buffer.concat(entries))).toHaveLength(200);
    expect(decode(decoder, indexed(NEWEST_ENTRY + 127))).toEqual([['', '']]);
    expect(decode(decoder, indexed(NEWEST_ENTRY + 128))).toBe('malformed');
  });

  test('an entry is available until exactly 4,096 bytes are newer or equal', () => {
    const decoder = new HpackDecoder();
    // 32 + 4 + 4,060 bytes.
    expect(decode(decoder, literal('full', 'x'.repeat(4_060), 'incremental'))).toHaveLength(1);
    expect(decode(decoder, indexed(NEWEST_ENTRY))).toHaveLength(1);
    expect(decode(decoder, literal('', '', 'incremental'))).toEqual([['', '']]);
    expect(decode(decoder, indexed(NEWEST_ENTRY + 1))).toBe('malformed');
  });

  test('a field that is larger than the table empties it, and is not added', () => {
    const decoder = new HpackDecoder();
    decode(decoder, literal('x-a', 'b', 'incremental'));
    expect(decode(decoder, literal('x-b', 'c'.repeat(4_062), 'incremental'))).toHaveLength(1);
    expect(decode(decoder, indexed(NEWEST_ENTRY))).toBe('malformed');
  });

  test('the name of an entry that the same field evicts is used (RFC 7541 §4.4)', () => {
    const decoder = new HpackDecoder();
    decode(decoder, literal('x-name', 'a'.repeat(3_000), 'incremental'));
    expect(decode(decoder, literal(NEWEST_ENTRY, 'b'.repeat(3_000), 'incremental'))).toEqual([
      ['x-name', 'b'.repeat(3_000)],
    ]);
    expect(decode(decoder, indexed(NEWEST_ENTRY))).toEqual([['x-name', 'b'.repeat(3_000)]]);
  });

  test('a table that is made smaller and larger again is empty', () => {
    const decoder = new HpackDecoder();
    decode(decoder, literal('x-a', 'b', 'incremental'));
    expect(decode(decoder, Buffer.concat([tableSizeUpdate(0), tableSizeUpdate(4_096)]))).toEqual([]);
    expect(decode(decoder, indexed(NEWEST_ENTRY))).toBe('malformed');
  });

  test('its version changes with every change, and only then', () => {
    const decoder = new HpackDecoder();
    const changes = (block: Buffer): boolean => {
      const { version } = decoder;
      decode(decoder, block);
      return decoder.version !== version;
    };
    expect(changes(headerBlock([['x-a', 'b']]))).toBe(false);
    expect(changes(literal('x-a', 'b', 'never'))).toBe(false);
    expect(changes(literal('x-a', 'b', 'incremental'))).toBe(true);
    expect(changes(indexed(NEWEST_ENTRY))).toBe(false);
    expect(changes(literal('x-a', 'b', 'incremental'))).toBe(true);
    expect(changes(tableSizeUpdate(100))).toBe(true);
    expect(changes(literal('x-b', 'c'.repeat(200), 'incremental'))).toBe(true);
  });

  test('connections do not share their tables', () => {
    const [one, other] = [new HpackDecoder(), new HpackDecoder()];
    decode(one, literal('authorization', 'Bearer of the first', 'incremental'));
    decode(other, literal('authorization', 'Bearer of the second', 'incremental'));
    expect(decode(one, indexed(NEWEST_ENTRY))).toEqual([['authorization', 'Bearer of the first']]);
    expect(decode(other, indexed(NEWEST_ENTRY))).toEqual([['authorization', 'Bearer of the second']]);
  });
});

describe('Huffman coding', () => {
  test('every byte, every pair of bytes and every length of padding is decoded', () => {
    const decodeText = (text: string): string | undefined => {
      const bytes = encodeHuffman(text);
      return decodeHuffman(bytes, 0, bytes.length);
    };
    const bytes = Array.from({ length: 256 }, (_, code) => String.fromCharCode(code));
    for (const byte of bytes) {
      for (let count = 1; count <= 8; count += 1) expect(decodeText(byte.repeat(count))).toBe(byte.repeat(count));
      for (const other of ['a', '0', '~', '\0', '\n', '\xff']) expect(decodeText(byte + other)).toBe(byte + other);
    }
    expect(decodeText(bytes.join(''))).toBe(bytes.join(''));
    expect(decodeText('')).toBe('');
  });

  test('long strings that begin alike are not confused', () => {
    const decoder = new HpackDecoder();
    const token = (last: string): string => `Bearer ${'abcdefgh'.repeat(60)}${last}`;
    for (let round = 0; round < 3; round += 1)
      for (const last of ['1', '2', '11', '', '3'])
        expect(decode(decoder, literal('authorization', token(last), 'never', true))).toEqual([
          ['authorization', token(last)],
        ]);
  });
});

describe('blocks of nghttp2', () => {
  let client: Nghttp2Client;
  beforeAll(async () => {
    client = await startNghttp2Client();
  });
  afterAll(() => client.close());

  /** Printable characters and those above 0x7f. */
  const character = (below: (limit: number) => number): string =>
    String.fromCharCode(below(8) === 0 ? 0x80 + below(0x80) : 0x21 + below(0x5e));

  test('800 requests with repeated and new fields, sensitive fields, long values and changes of the table size', async () => {
    const below = randomBelow(7);
    const decoder = new HpackDecoder();
    const pick = <T>(list: readonly T[]): T => list[below(list.length)] as T;
    const text = (length: number): string => Array.from({ length }, () => character(below)).join('');
    const names = ['accept', 'x-a', 'x-b', 'authorization', 'cookie', 'user-agent', 'referer', 'x-forwarded-for'];
    const values = Array.from({ length: 12 }, (_, index) => text(index * 5));
    let versions = 0;
    for (let request = 0; request < 800; request += 1) {
      // Zero, small, and back to the default; several changes between two requests, too.
      if (below(20) === 0) await client.setTableSize(pick([0, 50, 200, 1_000, 4_096, 65_536]));
      if (below(60) === 0) await client.setTableSize(pick([0, 4_096]));
      const fields: Field[] = [
        [':method', pick(['GET', 'POST', 'PROPFIND'])],
        [':scheme', 'https'],
        [':authority', pick(['localhost', 'example.test'])],
        [':path', below(3) === 0 ? `/${below(1_000)}` : '/'],
        ...Array.from({ length: below(12) }, (): Field => {
          const name = below(4) === 0 ? `x-${below(40)}` : pick(names);
          return [name, below(50) === 0 ? text(below(3_000)) : pick(values)];
        }),
      ];
      const sensitive = below(3) === 0 ? ['authorization', 'x-a'] : [];
      const { version } = decoder;
      expect(decode(decoder, await client.encode(fields, sensitive))).toEqual(fields);
      if (decoder.version !== version) versions += 1;
    }
    // Both kinds of requests occurred.
    expect(versions).toBeGreaterThan(100);
    expect(versions).toBeLessThan(700);
  });

  test('every character that a header value can contain is decoded', async () => {
    const decoder = new HpackDecoder();
    const all = Array.from({ length: 256 }, (_, code) => String.fromCharCode(code))
      .join('')
      .replace(/[\0-\x08\x0a-\x20\x7f]/g, '');
    // Enough short codes that nghttp2 uses Huffman coding for the rest, too.
    for (const value of [all, ...all.split('').map((one) => `${'a'.repeat(40)}${one}${'e'.repeat(3)}`)]) {
      const fields: Field[] = [
        [':method', 'GET'],
        [':scheme', 'https'],
        [':authority', 'localhost'],
        [':path', '/'],
        ['x-value', value.trim()],
      ];
      expect(decode(decoder, await client.encode(fields))).toEqual(fields);
    }
  });
});
