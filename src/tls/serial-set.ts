/**
 * Serial numbers in two flat arrays: 25 bytes for each of 16 bytes, where a `Set` of strings takes 69. Both
 * arrays can be transferred between threads without a copy.
 */
export interface SerialSet {
  readonly count: number;
  /** Each serial number after its length in one byte. */
  readonly bytes: Uint8Array<ArrayBuffer>;
  /** An open hash table: 0, or where a serial number begins in `bytes`, plus one. Its length is a power of two. */
  readonly slots: Uint32Array<ArrayBuffer>;
}

/** The most bytes a serial number may have here; RFC 5280 §4.1.2.2 allows 20. */
export const LONGEST_SERIAL = 255;

/** `packed`: serial numbers, each after its length in one byte; `total`: how many. */
export function serialSet(packed: Uint8Array, total: number): SerialSet {
  const bytes = packed.slice();
  let size = 8;
  while (size < total * 2) size *= 2;
  const slots = new Uint32Array(size);
  let count = 0;
  for (let at = 0; at < bytes.length; at += 1 + (bytes[at] as number)) {
    const slot = slotOf(bytes, slots, bytes, at + 1, bytes[at] as number);
    if (slots[slot] !== 0) continue;
    slots[slot] = at + 1;
    count += 1;
  }
  return { count, bytes, slots };
}

/** `serial`: hex, as certificates are read. */
export function hasSerial({ bytes, slots }: SerialSet, serial: string): boolean {
  const wanted = Buffer.from(serial, 'hex');
  return slots[slotOf(bytes, slots, wanted, 0, wanted.length)] !== 0;
}

/** The slot that holds these bytes, or the free one where they belong. */
function slotOf(
  bytes: Uint8Array,
  slots: Uint32Array,
  serial: Uint8Array,
  from: number,
  length: number,
): number {
  const mask = slots.length - 1;
  let slot = hashOf(serial, from, length) & mask;
  for (let at = slots[slot] as number; at !== 0; at = slots[slot] as number) {
    if (isAt(bytes, at - 1, serial, from, length)) return slot;
    slot = (slot + 1) & mask;
  }
  return slot;
}

function isAt(bytes: Uint8Array, at: number, serial: Uint8Array, from: number, length: number): boolean {
  if (bytes[at] !== length) return false;
  for (let index = 0; index < length; index += 1)
    if (bytes[at + 1 + index] !== serial[from + index]) return false;
  return true;
}

/** FNV-1a, with its bits mixed once more: serial numbers may follow each other by one. */
function hashOf(bytes: Uint8Array, from: number, length: number): number {
  let hash = 0x811c9dc5;
  for (let at = from; at < from + length; at += 1) hash = Math.imul(hash ^ (bytes[at] as number), 0x01000193);
  hash = Math.imul(hash ^ (hash >>> 15), 0x2c1b3c6d);
  return hash ^ (hash >>> 13);
}
