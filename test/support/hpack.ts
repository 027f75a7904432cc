/**
 * HPACK (RFC 7541) as the tests need it: an encoder for any representation, and a decoder that follows the text of the RFC.
 * It shares no code and no table with the server, which the fuzzers compare with it.
 */
export type Field = readonly [name: string, value: string];

/** Appendix B: the code of each byte in hexadecimal, and its length in bits, as golang.org/x/net/http2/hpack encodes it. */
const HUFFMAN_CODES = (
  '1ff8/13 7fffd8/23 fffffe2/28 fffffe3/28 fffffe4/28 fffffe5/28 fffffe6/28 fffffe7/28 fffffe8/28 ' +
  'ffffea/24 3ffffffc/30 fffffe9/28 fffffea/28 3ffffffd/30 fffffeb/28 fffffec/28 fffffed/28 fffffee/28 ' +
  'fffffef/28 ffffff0/28 ffffff1/28 ffffff2/28 3ffffffe/30 ffffff3/28 ffffff4/28 ffffff5/28 ffffff6/28 ' +
  'ffffff7/28 ffffff8/28 ffffff9/28 ffffffa/28 ffffffb/28 14/6 3f8/10 3f9/10 ffa/12 1ff9/13 15/6 f8/8 ' +
  '7fa/11 3fa/10 3fb/10 f9/8 7fb/11 fa/8 16/6 17/6 18/6 0/5 1/5 2/5 19/6 1a/6 1b/6 1c/6 1d/6 1e/6 1f/6 ' +
  '5c/7 fb/8 7ffc/15 20/6 ffb/12 3fc/10 1ffa/13 21/6 5d/7 5e/7 5f/7 60/7 61/7 62/7 63/7 64/7 65/7 66/7 ' +
  '67/7 68/7 69/7 6a/7 6b/7 6c/7 6d/7 6e/7 6f/7 70/7 71/7 72/7 fc/8 73/7 fd/8 1ffb/13 7fff0/19 1ffc/13 ' +
  '3ffc/14 22/6 7ffd/15 3/5 23/6 4/5 24/6 5/5 25/6 26/6 27/6 6/5 74/7 75/7 28/6 29/6 2a/6 7/5 2b/6 ' +
  '76/7 2c/6 8/5 9/5 2d/6 77/7 78/7 79/7 7a/7 7b/7 7ffe/15 7fc/11 3ffd/14 1ffd/13 ffffffc/28 fffe6/20 ' +
  '3fffd2/22 fffe7/20 fffe8/20 3fffd3/22 3fffd4/22 3fffd5/22 7fffd9/23 3fffd6/22 7fffda/23 7fffdb/23 ' +
  '7fffdc/23 7fffdd/23 7fffde/23 ffffeb/24 7fffdf/23 ffffec/24 ffffed/24 3fffd7/22 7fffe0/23 ffffee/24 ' +
  '7fffe1/23 7fffe2/23 7fffe3/23 7fffe4/23 1fffdc/21 3fffd8/22 7fffe5/23 3fffd9/22 7fffe6/23 7fffe7/23 ' +
  'ffffef/24 3fffda/22 1fffdd/21 fffe9/20 3fffdb/22 3fffdc/22 7fffe8/23 7fffe9/23 1fffde/21 7fffea/23 ' +
  '3fffdd/22 3fffde/22 fffff0/24 1fffdf/21 3fffdf/22 7fffeb/23 7fffec/23 1fffe0/21 1fffe1/21 3fffe0/22 ' +
  '1fffe2/21 7fffed/23 3fffe1/22 7fffee/23 7fffef/23 fffea/20 3fffe2/22 3fffe3/22 3fffe4/22 7ffff0/23 ' +
  '3fffe5/22 3fffe6/22 7ffff1/23 3ffffe0/26 3ffffe1/26 fffeb/20 7fff1/19 3fffe7/22 7ffff2/23 3fffe8/22 ' +
  '1ffffec/25 3ffffe2/26 3ffffe3/26 3ffffe4/26 7ffffde/27 7ffffdf/27 3ffffe5/26 fffff1/24 1ffffed/25 ' +
  '7fff2/19 1fffe3/21 3ffffe6/26 7ffffe0/27 7ffffe1/27 3ffffe7/26 7ffffe2/27 fffff2/24 1fffe4/21 ' +
  '1fffe5/21 3ffffe8/26 3ffffe9/26 ffffffd/28 7ffffe3/27 7ffffe4/27 7ffffe5/27 fffec/20 fffff3/24 ' +
  'fffed/20 1fffe6/21 3fffe9/22 1fffe7/21 1fffe8/21 7ffff3/23 3fffea/22 3fffeb/22 1ffffee/25 ' +
  '1ffffef/25 fffff4/24 fffff5/24 3ffffea/26 7ffff4/23 3ffffeb/26 7ffffe6/27 3ffffec/26 3ffffed/26 ' +
  '7ffffe7/27 7ffffe8/27 7ffffe9/27 7ffffea/27 7ffffeb/27 ffffffe/28 7ffffec/27 7ffffed/27 7ffffee/27 ' +
  '7ffffef/27 7fffff0/27 3ffffee/26'
).split(' ');
const EOS_LENGTH = 30;

interface Code {
  readonly value: number;
  readonly length: number;
}

const CODES = HUFFMAN_CODES.map((text): Code => {
  const [value = '', length = ''] = text.split('/');
  return { value: Number.parseInt(value, 16), length: Number(length) };
});
/** By length and value. */
const BYTES: readonly Map<number, number>[] = Array.from({ length: EOS_LENGTH + 1 }, () => new Map());
CODES.forEach(({ value, length }, byte) => BYTES[length]?.set(value, byte));

export function encodeHuffman(text: string): Buffer {
  const bits = [...Buffer.from(text, 'latin1')]
    .map((byte) => CODES[byte] as Code)
    .map(({ value, length }) => value.toString(2).padStart(length, '0'))
    .join('');
  const octets = `${bits}${'1'.repeat((8 - (bits.length % 8)) % 8)}`.match(/.{8}/g) ?? [];
  return Buffer.from(octets.map((octet) => Number.parseInt(octet, 2)));
}

/** Returns undefined if the encoding is not valid (§5.2). */
export function decodeHuffman(bytes: Buffer): string | undefined {
  const decoded: number[] = [];
  let value = 0;
  let length = 0;
  for (const byte of bytes)
    for (let bit = 7; bit >= 0; bit -= 1) {
      value = (value << 1) | ((byte >> bit) & 1);
      length += 1;
      const found = BYTES[length]?.get(value);
      if (found !== undefined) {
        decoded.push(found);
        value = 0;
        length = 0;
      } else if (length === EOS_LENGTH) return undefined;
    }
  const isPadding = length < 8 && value === 2 ** length - 1;
  return isPadding ? Buffer.from(decoded).toString('latin1') : undefined;
}

/** §5.1: an integer with a prefix of `bits` bits; `first` holds the other bits of the first byte. */
export function encodeInteger(value: number, bits: number, first = 0): Buffer {
  const limit = 2 ** bits - 1;
  if (value < limit) return Buffer.from([first | value]);
  const bytes = [first | limit];
  let rest = value - limit;
  for (; rest >= 128; rest = Math.floor(rest / 128)) bytes.push((rest % 128) + 128);
  return Buffer.from([...bytes, rest]);
}

const encodeString = (text: string, huffman: boolean): Buffer => {
  const bytes = huffman ? encodeHuffman(text) : Buffer.from(text, 'latin1');
  return Buffer.concat([encodeInteger(bytes.length, 7, huffman ? 0x80 : 0), bytes]);
};

/** §6.2: the first byte of each representation, and the bits of its index. */
const LITERAL = { none: [0x00, 4], incremental: [0x40, 6], never: [0x10, 4] } as const;
export type Indexing = keyof typeof LITERAL;

/** A literal; `name` is the name or the index of an entry that has it. */
export function literal(name: string | number, value: string, indexing: Indexing = 'none', huffman = false): Buffer {
  const [first, bits] = LITERAL[indexing];
  return Buffer.concat([
    typeof name === 'number'
      ? encodeInteger(name, bits, first)
      : Buffer.concat([Buffer.from([first]), encodeString(name, huffman)]),
    encodeString(value, huffman),
  ]);
}

/** §6.1. */
export const indexed = (index: number): Buffer => encodeInteger(index, 7, 0x80);
/** §6.3. */
export const tableSizeUpdate = (size: number): Buffer => encodeInteger(size, 5, 0x20);

/** Literals that are not indexed, without Huffman coding, so that a field can contain any bytes. */
export const headerBlock = (fields: readonly Field[]): Buffer =>
  Buffer.concat(fields.map(([name, value]) => literal(name, value)));

/** Appendix A. */
const STATIC_TABLE: readonly Field[] = [
  ':authority',
  ':method GET',
  ':method POST',
  ':path /',
  ':path /index.html',
  ':scheme http',
  ':scheme https',
  ':status 200',
  ':status 204',
  ':status 206',
  ':status 304',
  ':status 400',
  ':status 404',
  ':status 500',
  'accept-charset',
  'accept-encoding gzip, deflate',
  'accept-language',
  'accept-ranges',
  'accept',
  'access-control-allow-origin',
  'age',
  'allow',
  'authorization',
  'cache-control',
  'content-disposition',
  'content-encoding',
  'content-language',
  'content-length',
  'content-location',
  'content-range',
  'content-type',
  'cookie',
  'date',
  'etag',
  'expect',
  'expires',
  'from',
  'host',
  'if-match',
  'if-modified-since',
  'if-none-match',
  'if-range',
  'if-unmodified-since',
  'last-modified',
  'link',
  'location',
  'max-forwards',
  'proxy-authenticate',
  'proxy-authorization',
  'range',
  'referer',
  'refresh',
  'retry-after',
  'server',
  'set-cookie',
  'strict-transport-security',
  'transfer-encoding',
  'user-agent',
  'vary',
  'via',
  'www-authenticate',
].map((entry) => {
  const [, name = '', value = ''] = /^(:?[^ ]+) ?(.*)$/.exec(entry) ?? [];
  return [name, value];
});

/** The index of the newest entry of the dynamic table. */
export const NEWEST_ENTRY = STATIC_TABLE.length + 1;

const DEFAULT_TABLE_SIZE = 4_096;
/** Not in the RFC, which leaves limits of integers to implementations (§5.1): the bytes after the prefix. */
const MAX_INTEGER_BYTES = 4;
/** §4.2: the smallest and the last of several changes. */
const MAX_SIZE_UPDATES = 2;

export class MalformedBlock extends Error {}
/** One for all: the fuzzers cause millions. */
const MALFORMED = new MalformedBlock('a malformed header block');

/** Decodes the header blocks of a connection. Throws `MalformedBlock` where the RFC requires a decoding error. */
export class ReferenceDecoder {
  readonly #dynamicTable: Field[] = [];
  readonly #limit: number;
  #size = 0;
  #maxSize: number;
  #bytes: Buffer = Buffer.alloc(0);
  #at = 0;

  constructor(tableSize = DEFAULT_TABLE_SIZE) {
    this.#limit = tableSize;
    this.#maxSize = tableSize;
  }

  get entries(): number {
    return this.#dynamicTable.length;
  }

  decode(bytes: Buffer): Field[] {
    const fields: Field[] = [];
    this.#bytes = bytes;
    this.#at = 0;
    let updates = 0;
    while (this.#at < bytes.length) {
      const first = bytes[this.#at] ?? 0;
      if (first >> 5 === 1) {
        updates += 1;
        const size = this.#readInteger(5);
        if (fields.length > 0 || updates > MAX_SIZE_UPDATES || size > this.#limit) throw MALFORMED;
        this.#maxSize = size;
        this.#evict(size);
      } else if (first >= 128) fields.push(this.#get(this.#readInteger(7)));
      else fields.push(this.#readLiteral(first >> 6 === 1));
    }
    return fields;
  }

  #readLiteral(isIndexed: boolean): Field {
    const index = this.#readInteger(isIndexed ? 6 : 4);
    const name = index === 0 ? this.#readString() : this.#get(index)[0];
    const field: Field = [name, this.#readString()];
    if (isIndexed) {
      this.#evict(this.#maxSize - sizeOf(field));
      if (sizeOf(field) <= this.#maxSize) {
        this.#dynamicTable.unshift(field);
        this.#size += sizeOf(field);
      }
    }
    return field;
  }

  #evict(size: number): void {
    while (this.#size > size) {
      const oldest = this.#dynamicTable.pop();
      if (oldest === undefined) return;
      this.#size -= sizeOf(oldest);
    }
  }

  #get(index: number): Field {
    const entry = STATIC_TABLE[index - 1] ?? this.#dynamicTable[index - NEWEST_ENTRY];
    if (entry === undefined) throw MALFORMED;
    return entry;
  }

  #readInteger(bits: number): number {
    const limit = 2 ** bits - 1;
    const prefix = this.#readByte() & limit;
    if (prefix < limit) return prefix;
    let value = limit;
    for (let count = 0; count < MAX_INTEGER_BYTES; count += 1) {
      const byte = this.#readByte();
      value += (byte & 0x7f) * 128 ** count;
      if (byte < 128) return value;
    }
    throw MALFORMED;
  }

  #readString(): string {
    const isHuffman = (this.#bytes[this.#at] ?? 0) >= 128;
    const length = this.#readInteger(7);
    const bytes = this.#bytes.subarray(this.#at, this.#at + length);
    if (bytes.length < length) throw MALFORMED;
    this.#at += length;
    const text = isHuffman ? decodeHuffman(bytes) : bytes.toString('latin1');
    if (text === undefined) throw MALFORMED;
    return text;
  }

  #readByte(): number {
    const byte = this.#bytes[this.#at];
    if (byte === undefined) throw MALFORMED;
    this.#at += 1;
    return byte;
  }
}

/** §4.1. */
const sizeOf = ([name, value]: Field): number => name.length + value.length + 32;
