import { TwoGenerationCache } from '../lib/two-generation-cache.ts';
import { HeaderField } from './header-field.ts';
import { decodeHuffman } from './huffman.ts';
import { STATIC_TABLE } from './static-table.ts';

/** Takes the fields of a header block. False: they are too large, and the rest is not decoded. */
export interface FieldSink {
  add(field: HeaderField): boolean;
}

/** The default of SETTINGS_HEADER_TABLE_SIZE, which gatehouse does not change. */
export const TABLE_SIZE = 4_096;
/** More entries than fit into a table of this size, as a power of two. */
const RING_SIZE = 128;
const RING_MASK = RING_SIZE - 1;
/** RFC 7541 §4.2: the smallest and the last of several changes. */
const MAX_SIZE_UPDATES = 2;
/** An integer has at most four bytes after its prefix: no length or index in use is larger. */
const MAX_SHIFT = 21;

const STATIC_FIELDS = STATIC_TABLE.map(([name, value]) => new HeaderField(name, value));

/**
 * Clients based on nghttp2 never index `authorization`, and Huffman decoding costs more than all other work for such a
 * field. What it decodes to depends on its bytes only, so that all connections share this cache.
 */
const decodedStrings = new TwoGenerationCache<string>(512, 1_024);
const MIN_CACHED_LENGTH = 24;

/** Decodes the header blocks of one connection (RFC 7541). */
export class HpackDecoder {
  /** Changes with the dynamic table: the same bytes give the same fields as long as it stays the same. */
  version = 0;
  /** The dynamic table; the newest entry is at `#newest`. */
  readonly #entries: (HeaderField | undefined)[] = Array.from({ length: RING_SIZE });
  #newest = 0;
  #count = 0;
  #size = 0;
  #maxSize = TABLE_SIZE;
  /** The position in the block, and whether it is malformed. */
  #at = 0;
  #isMalformed = false;

  /** `malformed`: the state of the decoder is lost, and the connection must be closed (RFC 9113 §4.3). */
  decode(bytes: Buffer, start: number, end: number, sink: FieldSink): 'complete' | 'malformed' | 'too_large' {
    this.#at = start;
    this.#isMalformed = false;
    let sizeUpdates = 0;
    let hasFields = false;
    while (this.#at < end) {
      const first = bytes[this.#at] as number;
      // RFC 7541 §6.3.
      if ((first & 0xe0) === 0x20) {
        sizeUpdates += 1;
        if (hasFields || sizeUpdates > MAX_SIZE_UPDATES || !this.#updateSize(bytes, end)) return 'malformed';
        continue;
      }
      const field = first >= 0x80 ? this.#readIndexed(bytes, end) : this.#readLiteral(bytes, end, first);
      if (field === undefined) return 'malformed';
      hasFields = true;
      if (!sink.add(field)) return 'too_large';
    }
    return 'complete';
  }

  /** RFC 7541 §6.1. */
  #readIndexed(bytes: Buffer, end: number): HeaderField | undefined {
    const index = this.#readInteger(bytes, end, 0x7f);
    return this.#isMalformed ? undefined : this.#get(index);
  }

  /** RFC 7541 §6.2. */
  #readLiteral(bytes: Buffer, end: number, first: number): HeaderField | undefined {
    const isIndexed = first >= 0x40;
    const index = this.#readInteger(bytes, end, isIndexed ? 0x3f : 0x0f);
    if (this.#isMalformed) return undefined;
    const name = index === 0 ? this.#readString(bytes, end) : this.#get(index)?.name;
    const value = this.#readString(bytes, end);
    if (name === undefined || this.#isMalformed) return undefined;
    const field = new HeaderField(name, value);
    if (isIndexed) this.#insert(field);
    return field;
  }

  #updateSize(bytes: Buffer, end: number): boolean {
    const size = this.#readInteger(bytes, end, 0x1f);
    if (this.#isMalformed || size > TABLE_SIZE) return false;
    this.#maxSize = size;
    this.version += 1;
    this.#evict(size);
    return true;
  }

  /** RFC 7541 §2.3.3. */
  #get(index: number): HeaderField | undefined {
    if (index <= STATIC_FIELDS.length) return STATIC_FIELDS[index - 1];
    const age = index - STATIC_FIELDS.length - 1;
    return age < this.#count ? this.#entries[(this.#newest - age) & RING_MASK] : undefined;
  }

  /** RFC 7541 §4.4: a field that is larger than the table empties it. */
  #insert(field: HeaderField): void {
    this.version += 1;
    this.#evict(this.#maxSize - field.size);
    if (field.size > this.#maxSize) return;
    this.#newest = (this.#newest + 1) & RING_MASK;
    this.#entries[this.#newest] = field;
    this.#count += 1;
    this.#size += field.size;
  }

  /** Removes the oldest entries until the table is no larger than this. */
  #evict(size: number): void {
    while (this.#count > 0 && this.#size > size) {
      const oldest = (this.#newest - this.#count + 1) & RING_MASK;
      this.#size -= this.#entries[oldest]?.size ?? 0;
      this.#entries[oldest] = undefined;
      this.#count -= 1;
    }
  }

  /** RFC 7541 §5.1. `mask` covers the bits of the prefix. */
  #readInteger(bytes: Buffer, end: number, mask: number): number {
    let value = (bytes[this.#at++] as number) & mask;
    if (value < mask) return value;
    for (let shift = 0; ; shift += 7) {
      if (this.#at >= end || shift > MAX_SHIFT) {
        this.#isMalformed = true;
        return 0;
      }
      const byte = bytes[this.#at++] as number;
      value += (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
  }

  /** RFC 7541 §5.2. */
  #readString(bytes: Buffer, end: number): string {
    if (this.#isMalformed || this.#at >= end) {
      this.#isMalformed = true;
      return '';
    }
    const isHuffman = (bytes[this.#at] as number) >= 0x80;
    const length = this.#readInteger(bytes, end, 0x7f);
    const start = this.#at;
    if (this.#isMalformed || length > end - start) {
      this.#isMalformed = true;
      return '';
    }
    this.#at = start + length;
    if (!isHuffman) return bytes.toString('latin1', start, this.#at);
    const text = decodeCached(bytes, start, this.#at);
    this.#isMalformed = text === undefined;
    return text ?? '';
  }
}

function decodeCached(bytes: Buffer, start: number, end: number): string | undefined {
  if (end - start < MIN_CACHED_LENGTH) return decodeHuffman(bytes, start, end);
  const raw = bytes.toString('latin1', start, end);
  const known = decodedStrings.get(raw);
  if (known !== undefined) return known;
  const text = decodeHuffman(bytes, start, end);
  if (text !== undefined) decodedStrings.set(raw, text);
  return text;
}
