/**
 * A small, strict reader of DER (X.690). It reads what certificates and revocation lists are made of and refuses
 * everything DER does not allow: indefinite or padded lengths, long tags, bytes left over. It never calls
 * itself: a reader of a structure goes down level by level, so nesting in hostile input costs nothing.
 */
export class DerError extends Error {}

export const TAG = {
  boolean: 0x01,
  integer: 0x02,
  bitString: 0x03,
  octetString: 0x04,
  oid: 0x06,
  enumerated: 0x0a,
  utf8String: 0x0c,
  printableString: 0x13,
  t61String: 0x14,
  ia5String: 0x16,
  utcTime: 0x17,
  generalizedTime: 0x18,
  universalString: 0x1c,
  bmpString: 0x1e,
  sequence: 0x30,
  set: 0x31,
} as const;

/** The tag of a context-specific element: `[n] IMPLICIT` of a primitive, or constructed. */
export const context = (number: number, constructed = true): number => (constructed ? 0xa0 : 0x80) | number;

export interface Element {
  readonly tag: number;
  readonly content: Buffer;
  /** Tag and length included: what a signature covers. */
  readonly whole: Buffer;
}

const MAX_CHILDREN = 1_024;

/** Where an element is: its tag, and where its content begins and ends. */
export interface Span {
  tag: number;
  from: number;
  to: number;
}

/** Reads the header of the element at `start`, which must end by `limit`. Allocates nothing: lists have millions of elements. */
export function readHeader(bytes: Uint8Array, start: number, limit: number, into: Span): void {
  if (start + 2 > limit) throw new DerError('ends within a header');
  const tag = bytes[start] as number;
  const first = bytes[start + 1] as number;
  if ((tag & 0x1f) === 0x1f) throw new DerError('a tag number above 30');
  let from = start + 2;
  let length = first;
  if (first >= 0x80) {
    const size = first & 0x7f;
    if (size === 0) throw new DerError('an indefinite length');
    if (size > 4 || from + size > limit) throw new DerError('a length that cannot be');
    length = 0;
    for (let at = from; at < from + size; at += 1) length = length * 256 + (bytes[at] as number);
    if (length < 0x80 || length < 2 ** (8 * (size - 1))) throw new DerError('a length that is not minimal');
    from += size;
  }
  if (from + length > limit) throw new DerError('an element longer than what holds it');
  into.tag = tag;
  into.from = from;
  into.to = from + length;
}

function elementAt(bytes: Buffer, start: number): Element {
  const span: Span = { tag: 0, from: 0, to: 0 };
  readHeader(bytes, start, bytes.length, span);
  return {
    tag: span.tag,
    content: bytes.subarray(span.from, span.to),
    whole: bytes.subarray(start, span.to),
  };
}

/** The one element these bytes are. */
export function readOne(bytes: Buffer, tag: number): Element {
  const element = elementAt(bytes, 0);
  if (element.whole.length !== bytes.length) throw new DerError('bytes after the end');
  return expect(element, tag);
}

export function expect(element: Element | undefined, tag: number): Element {
  if (element?.tag !== tag)
    throw new DerError(`expected tag ${tag}, found ${element === undefined ? 'the end' : element.tag}`);
  return element;
}

/** What a constructed element holds, one by one. */
export function* each(parent: Element): Generator<Element, void> {
  for (let at = 0; at < parent.content.length; ) {
    const element = elementAt(parent.content, at);
    at += element.whole.length;
    yield element;
  }
}

/** What a constructed element holds; the number is bounded. Use `each` where millions are normal. */
export function children(parent: Element): Element[] {
  const found: Element[] = [];
  for (const element of each(parent)) {
    if (found.length === MAX_CHILDREN) throw new DerError('too many elements');
    found.push(element);
  }
  return found;
}

export function readOid(element: Element | undefined): string {
  const { content } = expect(element, TAG.oid);
  if (content.length === 0 || content.length > 64)
    throw new DerError('an object identifier of no or absurd length');
  const arcs: number[] = [];
  let arc = 0;
  let begun = false;
  for (const byte of content) {
    if (!begun && byte === 0x80) throw new DerError('a padded object identifier');
    begun = true;
    arc = arc * 128 + (byte & 0x7f);
    if (arc > Number.MAX_SAFE_INTEGER / 128) throw new DerError('an object identifier arc out of range');
    if (byte < 0x80) {
      arcs.push(arc);
      arc = 0;
      begun = false;
    }
  }
  if (begun) throw new DerError('an object identifier that does not end');
  const [joint = 0, ...rest] = arcs;
  const root = Math.min(2, Math.floor(joint / 40));
  return [root, joint - root * 40, ...rest].join('.');
}

/** An integer's bytes as hex: the way serial numbers are compared. */
export function readIntegerHex(element: Element | undefined): string {
  const { content } = expect(element, TAG.integer);
  checkInteger(content, 0, content.length);
  return content.toString('hex');
}

/** X.690 §8.3.2: not empty, and without padding. */
export function checkInteger(bytes: Uint8Array, from: number, to: number): void {
  if (from === to) throw new DerError('an empty integer');
  const first = bytes[from] as number;
  const second = bytes[from + 1] as number;
  if (to - from > 1 && ((first === 0 && second < 0x80) || (first === 0xff && second >= 0x80)))
    throw new DerError('a padded integer');
}

/** A small non-negative integer. */
export function readSmallInteger(element: Element | undefined): number {
  const hex = readIntegerHex(element);
  const value = Number.parseInt(hex, 16);
  if (hex.length > 10 || Number.parseInt(hex.slice(0, 2), 16) >= 0x80)
    throw new DerError('an integer out of range');
  return value;
}

export function readBoolean(element: Element | undefined): boolean {
  const { content } = expect(element, TAG.boolean);
  if (content.length !== 1 || (content[0] !== 0 && content[0] !== 0xff)) throw new DerError('not a boolean');
  return content[0] === 0xff;
}

/** The numbers of the bits that are set. */
export function readBits(element: Element | undefined): ReadonlySet<number> {
  const { content } = expect(element, TAG.bitString);
  const unused = content[0];
  const last = content.at(-1) ?? 0;
  if (unused === undefined || unused > 7 || (content.length === 1 && unused > 0))
    throw new DerError('not a bit string');
  if (unused > 0 && (last & ((1 << unused) - 1)) !== 0) throw new DerError('unused bits that are set');
  const bits = new Set<number>();
  for (const [index, byte] of content.subarray(1, 9).entries())
    for (let bit = 0; bit < 8; bit += 1) if ((byte & (0x80 >> bit)) !== 0) bits.add(index * 8 + bit);
  return bits;
}

/** A bit string that holds whole bytes, such as a signature. */
export function readBitBytes(element: Element | undefined): Buffer {
  const { content } = expect(element, TAG.bitString);
  if (content[0] !== 0) throw new DerError('a bit string that is not made of bytes');
  return content.subarray(1);
}

/** UTCTime or GeneralizedTime in the one form RFC 5280 §4.1.2.5 allows: to the second, in UTC. */
export function readTime(element: Element | undefined): number {
  if (element === undefined) throw new DerError('not a time');
  return timeAt(element.content, { tag: element.tag, from: 0, to: element.content.length });
}

export function timeAt(bytes: Uint8Array, { tag, from, to }: Span): number {
  const digits = tag === TAG.utcTime ? 12 : tag === TAG.generalizedTime ? 14 : 0;
  if (digits === 0 || to - from !== digits + 1 || bytes[to - 1] !== 0x5a) throw new DerError('not a time');
  const short = twoDigits(bytes, from);
  const year =
    digits === 12 ? short + (short >= 50 ? 1_900 : 2_000) : short * 100 + twoDigits(bytes, from + 2);
  const rest = to - 11;
  const month = twoDigits(bytes, rest);
  const day = twoDigits(bytes, rest + 2);
  const hour = twoDigits(bytes, rest + 4);
  const minute = twoDigits(bytes, rest + 6);
  const second = twoDigits(bytes, rest + 8);
  if (
    month < 1 ||
    month > 12 ||
    day < 1 ||
    day > daysIn(year, month) ||
    hour > 23 ||
    minute > 59 ||
    second > 59
  )
    throw new DerError('a time that cannot be');
  return daysTo(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
}

function twoDigits(bytes: Uint8Array, at: number): number {
  const tens = (bytes[at] as number) - 0x30;
  const ones = (bytes[at + 1] as number) - 0x30;
  if (tens < 0 || tens > 9 || ones < 0 || ones > 9) throw new DerError('not a time');
  return tens * 10 + ones;
}

const DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] as const;

const daysIn = (year: number, month: number): number =>
  month === 2 && year % 4 === 0 && (year % 100 !== 0 || year % 400 === 0) ? 29 : (DAYS[month - 1] ?? 0);

/** Days from 1970-01-01 in the Gregorian calendar. `Date.UTC` would read the years 0 to 99 as 1900 to 1999. */
function daysTo(year: number, month: number, day: number): number {
  const from = month > 2 ? year : year - 1;
  const era = Math.floor(from / 400);
  const ofEra = from - era * 400;
  const ofYear = Math.floor((153 * (month > 2 ? month - 3 : month + 9) + 2) / 5) + day - 1;
  return era * 146_097 + ofEra * 365 + Math.floor(ofEra / 4) - Math.floor(ofEra / 100) + ofYear - 719_468;
}

// `ignoreBOM` keeps a byte order mark in the text; without it two names would read as one.
const UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
const UTF16 = new TextDecoder('utf-16be', { ignoreBOM: true });

export type ReadText =
  | { readonly ok: true; readonly text: string }
  | { readonly ok: false; readonly problem: string };

/** A string as its type defines it; types whose meaning is disputed are refused rather than guessed. */
export function readText({ tag, content }: Element): ReadText {
  const refuse = (problem: string): ReadText => ({ ok: false, problem });
  switch (tag) {
    case TAG.utf8String:
      try {
        return { ok: true, text: UTF8.decode(content) };
      } catch {
        return refuse('it is not UTF-8');
      }
    case TAG.printableString: {
      const text = content.toString('latin1');
      // `@`, `*` and `_` are not in the repertoire (X.680 §41.4), but `@` and `_` are often written.
      return /^[A-Za-z0-9 '()+,./:=?@_&*-]*$/.test(text)
        ? { ok: true, text }
        : refuse('it is not a PrintableString');
    }
    case TAG.ia5String: {
      if (content.some((byte) => byte > 0x7f)) return refuse('it is not an IA5String');
      return { ok: true, text: content.toString('latin1') };
    }
    case TAG.bmpString: {
      if (content.length % 2 !== 0) return refuse('it is not a BMPString');
      const text = UTF16.decode(content);
      // BMPString has no surrogates: a pair of them means that somebody wrote UTF-16 under another name.
      return /[\ud800-\udfff\ufffd]/.test(text) ? refuse('it is not a BMPString') : { ok: true, text };
    }
    case TAG.t61String:
      return refuse('it is a T61String, whose characters are ambiguous');
    default:
      return refuse('it is of a string type that is not accepted');
  }
}
