import type { RevocationEntry } from './revocation-rules.ts';

/**
 * Revoked grants by their ids, in as little memory as their contents take: 24 bytes each.
 *
 * A grant id is 22 letters of base64url, 132 bits drawn at random. Its first 10 bits say in which of 1024 shelves it
 * lies; the other 122 fill four words, kept whole, so a hit is the very same id and never a hash that looks like it.
 * Each shelf is sorted by the first word and full up to a few places, where an open table must stay a third empty;
 * the ids being random, shelves are equally long and putting one in moves some kilobytes at most.
 */
export interface SortedGrants {
  /** Undefined when nothing is kept of this id, or when it is no id of this form. */
  get(id: string): RevocationEntry | undefined;
  /** False when the id or the entry does not fit here. */
  set(id: string, entry: RevocationEntry): boolean;
  delete(id: string): void;
  /** Removes what has ended; returns how many. */
  sweep(now: number, fromShelf: number, shelves: number): number;
  entries(): Iterable<readonly [string, RevocationEntry]>;
  size(): number;
  bytes(): number;
}

const SHELVES = 1024;
const WORDS = 6;
const KEEP = 4;
const LIMIT = 5;
/** Stands for "all generations". */
const ENDED = 0xffff_ffff;
const LARGEST = 0xffff_fffe;

const ALPHABET = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
const ID_LENGTH = 22;
/** Marks what is no letter; above the six bits of those that are. */
const NO_LETTER = 0x40;
const VALUES = new Uint8Array(128).fill(NO_LETTER);
for (let value = 0; value < ALPHABET.length; value += 1) VALUES[ALPHABET.charCodeAt(value)] = value;

interface Shelf {
  words: Uint32Array;
  count: number;
}

export function sortedGrants(): SortedGrants {
  const shelves: Shelf[] = Array.from({ length: SHELVES }, () => ({ words: new Uint32Array(0), count: 0 }));
  let size = 0;
  // The id that was read last, as shelf and four words. A look-up must allocate nothing, not even a number.
  let shelfNumber = 0;
  const key = new Uint32Array(4);

  const read = (id: string): boolean => {
    if (id.length !== ID_LENGTH) return false;
    let seen = 0;
    let marks = 0;
    let word = 0;
    for (let at = 0; at < ID_LENGTH; at += 1) {
      const code = id.charCodeAt(at);
      const value = VALUES[code & 0x7f] as number;
      seen |= code;
      marks |= value;
      word = (word << 6) | value;
      // Two letters, of which ten bits are the shelf's; then four times five letters.
      if (at === 1) {
        shelfNumber = (word >>> 2) & (SHELVES - 1);
        word &= 3;
      } else if (at % 5 === 1) {
        key[(at - 6) / 5] = word;
        word = 0;
      }
    }
    return seen < 0x80 && marks < NO_LETTER;
  };

  /** The first place whose first word is not below the one that was read. */
  const lowerBound = ({ words, count }: Shelf): number => {
    const a = key[0] as number;
    let low = 0;
    let high = count;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if ((words[middle * WORDS] as number) < a) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  /** The place of the id that was read, or -1. Ids that share a first word lie beside each other, in any order. */
  const find = (shelf: Shelf): number => {
    const { words, count } = shelf;
    for (let place = lowerBound(shelf); place < count; place += 1) {
      const at = place * WORDS;
      if (words[at] !== key[0]) return -1;
      if (words[at + 1] === key[1] && words[at + 2] === key[2] && words[at + 3] === key[3]) return place;
    }
    return -1;
  };

  const entryAt = (words: Uint32Array, place: number): RevocationEntry => {
    const limit = words[place * WORDS + LIMIT] ?? 0;
    return {
      limit: limit === ENDED ? Number.POSITIVE_INFINITY : limit,
      keepUntil: words[place * WORDS + KEEP] ?? 0,
    };
  };
  const write = (words: Uint32Array, place: number, { limit, keepUntil }: RevocationEntry): void => {
    words[place * WORDS + KEEP] = keepUntil;
    words[place * WORDS + LIMIT] = limit === Number.POSITIVE_INFINITY ? ENDED : limit;
  };
  const resize = (shelf: Shelf, places: number): void => {
    const words = new Uint32Array(places * WORDS);
    words.set(shelf.words.subarray(0, shelf.count * WORDS));
    shelf.words = words;
  };
  const insert = (shelf: Shelf): number => {
    const places = shelf.words.length / WORDS;
    if (shelf.count === places) resize(shelf, places + Math.max(4, places >>> 5));
    const place = lowerBound(shelf);
    const { words, count } = shelf;
    words.copyWithin((place + 1) * WORDS, place * WORDS, count * WORDS);
    words.set(key, place * WORDS);
    shelf.count += 1;
    size += 1;
    return place;
  };

  return {
    get(id) {
      if (size === 0 || !read(id)) return undefined;
      const shelf = shelves[shelfNumber] as Shelf;
      const place = find(shelf);
      return place < 0 ? undefined : entryAt(shelf.words, place);
    },
    set(id, entry) {
      if (!fits(entry) || !read(id)) return false;
      const shelf = shelves[shelfNumber] as Shelf;
      const found = find(shelf);
      const place = found < 0 ? insert(shelf) : found;
      write(shelf.words, place, entry);
      return true;
    },
    delete(id) {
      if (!read(id)) return;
      const shelf = shelves[shelfNumber] as Shelf;
      const place = find(shelf);
      if (place < 0) return;
      shelf.words.copyWithin(place * WORDS, (place + 1) * WORDS, shelf.count * WORDS);
      shelf.count -= 1;
      size -= 1;
    },
    sweep(now, fromShelf, count) {
      let removed = 0;
      for (const shelf of shelves.slice(fromShelf, fromShelf + count)) {
        const { words } = shelf;
        let kept = 0;
        for (let place = 0; place < shelf.count; place += 1) {
          if ((words[place * WORDS + KEEP] ?? 0) <= now) continue;
          if (kept !== place) words.copyWithin(kept * WORDS, place * WORDS, (place + 1) * WORDS);
          kept += 1;
        }
        if (kept === shelf.count) continue;
        removed += shelf.count - kept;
        shelf.count = kept;
        if (kept < words.length / WORDS / 2) resize(shelf, kept);
      }
      size -= removed;
      return removed;
    },
    *entries() {
      for (const [number, shelf] of shelves.entries()) {
        // What is added meanwhile is announced by whoever adds it.
        const words = shelf.words.slice(0, shelf.count * WORDS);
        for (let at = 0; at < words.length; at += WORDS)
          yield [idOf(number, words.subarray(at, at + 4)), entryAt(words, at / WORDS)];
      }
    },
    size: () => size,
    bytes: () => shelves.reduce((sum, { words }) => sum + words.byteLength, 0),
  };
}

/** How many shelves there are to sweep. */
export const SHELF_COUNT = SHELVES;

const fits = ({ limit, keepUntil }: RevocationEntry): boolean =>
  isWord(keepUntil) && (limit === Number.POSITIVE_INFINITY || isWord(limit));

const isWord = (value: number): boolean => Number.isInteger(value) && value >= 0 && value <= LARGEST;

function idOf(shelf: number, words: Uint32Array): string {
  const [a = 0, b = 0, c = 0, d = 0] = words;
  const head = shelf * 4 + Math.floor(a / 2 ** 30);
  return letters(head, 2) + [a % 2 ** 30, b, c, d].map((word) => letters(word, 5)).join('');
}

function letters(word: number, count: number): string {
  let text = '';
  for (let rest = word, left = count; left > 0; left -= 1) {
    text = (ALPHABET[rest % 64] ?? '') + text;
    rest = Math.floor(rest / 64);
  }
  return text;
}
