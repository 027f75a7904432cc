import type { RevocationEntry } from './revocation-rules.ts';

/** How many sweeps visit every bucket once. */
export const SWEEPS_PER_PASS = 16;

const ALPHABET = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
const ID_PATTERN = /^[\w-]{22}$/;
const ID_LENGTH = 22;
const BUCKET_CHARS = 2;
const WORD_CHARS = 5;
const BUCKETS = ALPHABET.length ** BUCKET_CHARS;
const ID_WORDS = 4;
const KEEP_UNTIL_WORD = 4;
const LIMIT_WORD = 5;
const ENTRY_WORDS = 6;
/** Stored in place of `Infinity`. */
const ALL_GENERATIONS = 0xffff_ffff;

const DECODED = new Int8Array(128).fill(-1);
for (let value = 0; value < ALPHABET.length; value += 1) DECODED[ALPHABET.charCodeAt(value)] = value;

/** The value of some characters of an id; -1, which equals no stored word, if one is not base64url. */
function decode(id: string, start: number, length: number): number {
  let value = 0;
  for (let at = start; at < start + length; at += 1) {
    const digit = DECODED[id.charCodeAt(at)] ?? -1;
    if (digit < 0) return -1;
    value = (value << 6) | digit;
  }
  return value;
}

const decodeWord = (id: string, word: number): number => decode(id, BUCKET_CHARS + word * WORD_CHARS, WORD_CHARS);

function encode(value: number, length: number): string {
  let text = '';
  for (let shift = (length - 1) * 6; shift >= 0; shift -= 6) text += ALPHABET[(value >>> shift) & 63];
  return text;
}

const EMPTY = new Uint32Array(0);

class Bucket {
  words = EMPTY;
  count = 0;

  /** The slot of an id; if it is absent, the bitwise complement of the slot to insert it at. */
  findSlot(id: string): number {
    const { words, count } = this;
    const first = decodeWord(id, 0);
    let slot = 0;
    for (let end = count; slot < end; ) {
      const middle = (slot + end) >>> 1;
      if ((words[middle * ENTRY_WORDS] as number) < first) slot = middle + 1;
      else end = middle;
    }
    for (; slot < count && words[slot * ENTRY_WORDS] === first; slot += 1) if (this.#hasWords(slot, id)) return slot;
    return ~slot;
  }

  #hasWords(slot: number, id: string): boolean {
    for (let word = 1; word < ID_WORDS; word += 1)
      if (this.words[slot * ENTRY_WORDS + word] !== decodeWord(id, word)) return false;
    return true;
  }

  insert(slot: number, id: string): void {
    const slots = this.words.length / ENTRY_WORDS;
    if (this.count === slots) this.#resize(slots + Math.max(4, slots >>> 5));
    const start = slot * ENTRY_WORDS;
    this.words.copyWithin(start + ENTRY_WORDS, start, this.count * ENTRY_WORDS);
    for (let word = 0; word < ID_WORDS; word += 1) this.words[start + word] = decodeWord(id, word);
    this.count += 1;
  }

  remove(slot: number): void {
    this.words.copyWithin(slot * ENTRY_WORDS, (slot + 1) * ENTRY_WORDS, this.count * ENTRY_WORDS);
    this.count -= 1;
  }

  sweep(now: number): number {
    const { words, count } = this;
    let kept = 0;
    for (let at = 0; at < count * ENTRY_WORDS; at += ENTRY_WORDS) {
      if ((words[at + KEEP_UNTIL_WORD] as number) <= now) continue;
      words.copyWithin(kept * ENTRY_WORDS, at, at + ENTRY_WORDS);
      kept += 1;
    }
    this.count = kept;
    if (kept < count && kept < words.length / ENTRY_WORDS / 2) this.#resize(kept);
    return count - kept;
  }

  read(slot: number): RevocationEntry {
    const limit = this.words[slot * ENTRY_WORDS + LIMIT_WORD] as number;
    return {
      limit: limit === ALL_GENERATIONS ? Number.POSITIVE_INFINITY : limit,
      keepUntil: this.words[slot * ENTRY_WORDS + KEEP_UNTIL_WORD] as number,
    };
  }

  write(slot: number, { limit, keepUntil }: RevocationEntry): void {
    this.words[slot * ENTRY_WORDS + KEEP_UNTIL_WORD] = keepUntil;
    this.words[slot * ENTRY_WORDS + LIMIT_WORD] = limit === Number.POSITIVE_INFINITY ? ALL_GENERATIONS : limit;
  }

  /** A copy, with ids that begin with `prefix`. */
  list(prefix: string): readonly (readonly [string, RevocationEntry])[] {
    return Array.from({ length: this.count }, (_, slot) => {
      const words = this.words.subarray(slot * ENTRY_WORDS, slot * ENTRY_WORDS + ID_WORDS);
      return [[...words].reduce((id, word) => id + encode(word, WORD_CHARS), prefix), this.read(slot)];
    });
  }

  #resize(slots: number): void {
    const words = new Uint32Array(slots * ENTRY_WORDS);
    words.set(this.words.subarray(0, this.count * ENTRY_WORDS));
    this.words = words;
  }
}

/**
 * Revoked grants by id, in 24 bytes each.
 *
 * A grant id is 22 random base64url characters. The first two select one of 4096 buckets; the others are stored as four
 * 30-bit words, so a match is exact. A bucket is an array sorted by the first word: unlike a hash table it has hardly any
 * free slots, and as ids are random it stays short enough to insert by moving the entries behind.
 */
export function createRevokedGrantMap() {
  const buckets = Array.from({ length: BUCKETS }, () => new Bucket());
  let size = 0;
  let sweptBuckets = 0;
  const findBucket = (id: string): Bucket | undefined =>
    id.length === ID_LENGTH ? buckets[decode(id, 0, BUCKET_CHARS)] : undefined;

  return {
    get(id: string): RevocationEntry | undefined {
      const bucket = size > 0 ? findBucket(id) : undefined;
      const slot = bucket?.findSlot(id) ?? -1;
      return slot < 0 ? undefined : bucket?.read(slot);
    },
    /** False when the id or the entry cannot be represented. */
    set(id: string, entry: RevocationEntry): boolean {
      const bucket = findBucket(id);
      if (bucket === undefined || !ID_PATTERN.test(id) || !isRepresentable(entry)) return false;
      let slot = bucket.findSlot(id);
      if (slot < 0) {
        slot = ~slot;
        bucket.insert(slot, id);
        size += 1;
      }
      bucket.write(slot, entry);
      return true;
    },
    delete(id: string): void {
      const bucket = findBucket(id);
      const slot = bucket?.findSlot(id) ?? -1;
      if (slot < 0) return;
      bucket?.remove(slot);
      size -= 1;
    },
    /** Removes expired entries from the next part of the buckets; returns how many. */
    sweep(now: number): number {
      const end = sweptBuckets + BUCKETS / SWEEPS_PER_PASS;
      const removed = buckets.slice(sweptBuckets, end).reduce((sum, bucket) => sum + bucket.sweep(now), 0);
      sweptBuckets = end % BUCKETS;
      size -= removed;
      return removed;
    },
    *entries(): Generator<readonly [string, RevocationEntry]> {
      for (const [index, bucket] of buckets.entries()) yield* bucket.list(encode(index, BUCKET_CHARS));
    },
    size: () => size,
    bytes: () => buckets.reduce((sum, { words }) => sum + words.byteLength, 0),
  };
}

const isRepresentable = ({ limit, keepUntil }: RevocationEntry): boolean =>
  isWord(keepUntil) && (limit === Number.POSITIVE_INFINITY || isWord(limit));

const isWord = (value: number): boolean => Number.isInteger(value) && value >= 0 && value < ALL_GENERATIONS;
