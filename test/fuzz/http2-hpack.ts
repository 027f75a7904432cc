import { HpackDecoder } from '../../src/http2/hpack-decoder.ts';
import {
  encodeHuffman,
  encodeInteger,
  type Field,
  type Indexing,
  indexed,
  literal,
  MalformedBlock,
  NEWEST_ENTRY,
  ReferenceDecoder,
  tableSizeUpdate,
} from '../support/hpack.ts';
import { mutate, randomBelow } from './mutations.ts';

/**
 * Header blocks for gatehouse's decoder and for the reference decoder of the tests: both must decode the same fields, or
 * reject the block, and have the same dynamic table afterwards, which the following blocks of the connection show.
 */
export interface HpackResult {
  blocks: number;
  fields: number;
  /** Blocks that both decoders reject. */
  malformed: number;
}

type Below = (limit: number) => number;

/** After this many blocks, or a malformed one, a new connection begins. */
const BLOCKS_PER_CONNECTION = 60;

const NAMES = ['x-a', 'x-b', ':path', 'cookie', 'authorization', 'X-Upper', '', 'a'.repeat(60)];
const VALUES = [
  '',
  'a',
  '/files/1',
  'Bearer abc',
  '\0\r\n',
  '\xff\xfe',
  'b'.repeat(126),
  'c'.repeat(128),
  'd'.repeat(1_500),
];
const ENTRY_VALUES = [...VALUES, 'e'.repeat(4_064), 'f'.repeat(5_000)];
const TABLE_SIZES = [0, 30, 64, 100, 500, 4_095, 4_096, 4_096, 4_097, 1_000_000];
const INDEXING: readonly Indexing[] = ['none', 'incremental', 'incremental', 'incremental', 'never'];

/** Encoding is slow, and only a few strings are used. */
const literals = new Map<string, Buffer>();
function cachedLiteral(name: string | number, value: string, indexing: Indexing, huffman: boolean): Buffer {
  const key = `${name}\n${indexing}\n${huffman}\n${value}`;
  let bytes = literals.get(key);
  if (bytes === undefined) {
    bytes = literal(name, value, indexing, huffman);
    literals.set(key, bytes);
  }
  return bytes;
}

function createField(below: Below, entries: number): Buffer {
  const pick = <T>(list: readonly T[]): T => list[below(list.length)] as T;
  const index = (): number => {
    if (below(40) === 0) return pick([0, NEWEST_ENTRY + entries, NEWEST_ENTRY + 200, 2 ** 20]);
    return below(3) === 0 || entries === 0 ? 1 + below(61) : NEWEST_ENTRY + below(entries);
  };
  if (below(2) === 0) return indexed(index());
  const name = below(3) === 0 ? index() : pick(NAMES);
  return cachedLiteral(name, pick(below(8) === 0 ? ENTRY_VALUES : VALUES), pick(INDEXING), below(2) === 0);
}

const RANDOM_STRINGS = ['\xff\xff\xff\xff', '\x07\xff', '\x00', '\xff\xfe'].map((text) => Buffer.from(text, 'latin1'));

/** A string whose Huffman coding is wrong. */
const createWrongHuffman = (below: Below): Buffer => {
  const bytes = RANDOM_STRINGS[below(RANDOM_STRINGS.length)] ?? encodeHuffman('a');
  return Buffer.concat([Buffer.from([0x00, 0x01, 0x61]), encodeInteger(bytes.length, 7, 0x80), bytes]);
};

export function createBlock(seed: number, entries: number): Buffer {
  const below = randomBelow(seed);
  for (let skipped = 0; skipped < 4; skipped += 1) below(2);
  const parts: Buffer[] = [];
  for (let updates = below(12) === 0 ? 1 + below(3) : 0; updates > 0; updates -= 1)
    parts.push(tableSizeUpdate(TABLE_SIZES[below(TABLE_SIZES.length)] ?? 0));
  for (let fields = below(9); fields > 0; fields -= 1) parts.push(createField(below, entries));
  if (below(60) === 0) parts.push(createWrongHuffman(below));
  if (below(60) === 0) parts.push(tableSizeUpdate(100));
  const block = Buffer.concat(parts);
  return below(4) === 0 && block.length > 0 ? mutate(block, below) : block;
}

function decode(decoder: HpackDecoder, block: Buffer): Field[] | 'malformed' {
  const fields: Field[] = [];
  const outcome = decoder.decode(block, 0, block.length, {
    add({ name, value }) {
      fields.push([name, value]);
      return true;
    },
  });
  return outcome === 'complete' ? fields : 'malformed';
}

function decodeReference(decoder: ReferenceDecoder, block: Buffer): Field[] | 'malformed' {
  try {
    return decoder.decode(block);
  } catch (error) {
    if (error instanceof MalformedBlock) return 'malformed';
    throw error;
  }
}

const areEqual = (one: Field[] | 'malformed', other: Field[] | 'malformed'): boolean =>
  one.length === other.length &&
  (typeof one === 'string' || typeof other === 'string'
    ? one === other
    : one.every(([name, value], at) => name === other[at]?.[0] && value === other[at]?.[1]));

/** Throws at the first difference, with the blocks of the connection. */
export function fuzzHpack(count: number, seed: number, log: (line: string) => void = () => {}): HpackResult {
  const result: HpackResult = { blocks: 0, fields: 0, malformed: 0 };
  let next = seed * 1_000_003;
  while (result.blocks < count) {
    const decoder = new HpackDecoder();
    const reference = new ReferenceDecoder();
    const blocks: Buffer[] = [];
    for (let sent = 0; sent < BLOCKS_PER_CONNECTION && result.blocks < count; sent += 1) {
      const block = createBlock(next++, reference.entries);
      blocks.push(block);
      const expected = decodeReference(reference, block);
      const decoded = decode(decoder, block);
      result.blocks += 1;
      if (!areEqual(decoded, expected))
        throw new Error(
          `seed ${seed}: decoded ${JSON.stringify(decoded).slice(0, 2_000)}\n  expected ${JSON.stringify(expected).slice(0, 2_000)}\n  blocks ${blocks.map((bytes) => bytes.toString('hex')).join(' ')}`,
        );
      if (expected === 'malformed') {
        result.malformed += 1;
        break;
      }
      result.fields += expected.length;
    }
    if (result.blocks % 1_000_000 < BLOCKS_PER_CONNECTION && result.blocks >= BLOCKS_PER_CONNECTION)
      log(`${result.blocks} header blocks, ${result.fields} fields, ${result.malformed} malformed`);
  }
  return result;
}
