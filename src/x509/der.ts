/**
 * A strict reader for the DER (X.690) of certificates and revocation lists. It rejects indefinite and padded lengths, long
 * tags and trailing bytes. It is not recursive, so deeply nested input costs nothing.
 */
export class DerError extends Error {}

export const TAG = {
  boolean: 0x01,
  integer: 0x02,
  bitString: 0x03,
  octetString: 0x04,
  oid: 0x06,
  utf8String: 0x0c,
  printableString: 0x13,
  t61String: 0x14,
  ia5String: 0x16,
  utcTime: 0x17,
  generalizedTime: 0x18,
  bmpString: 0x1e,
  sequence: 0x30,
  set: 0x31,
} as const;

/** The tag of `[number]`; primitive for `IMPLICIT` of a primitive type. */
export const contextTag = (number: number, constructed = true): number => (constructed ? 0xa0 : 0x80) | number;

export interface Element {
  readonly tag: number;
  readonly content: Buffer;
  /** Tag and length included: what a signature covers. */
  readonly encoded: Buffer;
}

const MAX_CHILDREN = 1_024;

/** The position of an element: its tag, and the bounds of its content. */
export interface Span {
  tag: number;
  from: number;
  to: number;
}

/** Reads the header of the element at `start`, which must end by `limit`. Without allocation: lists have millions of elements. */
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
    if (size > 4 || from + size > limit) throw new DerError('an invalid length');
    length = 0;
    for (let at = from; at < from + size; at += 1) length = length * 256 + (bytes[at] as number);
    if (length < 0x80 || length < 2 ** (8 * (size - 1))) throw new DerError('a length that is not minimal');
    from += size;
  }
  if (from + length > limit) throw new DerError('an element longer than its parent');
  into.tag = tag;
  into.from = from;
  into.to = from + length;
}

function readElementAt(bytes: Buffer, start: number): Element {
  const span: Span = { tag: 0, from: 0, to: 0 };
  readHeader(bytes, start, bytes.length, span);
  return {
    tag: span.tag,
    content: bytes.subarray(span.from, span.to),
    encoded: bytes.subarray(start, span.to),
  };
}

/** The bytes must be exactly one element. */
export function readElement(bytes: Buffer, tag: number): Element {
  const element = readElementAt(bytes, 0);
  if (element.encoded.length !== bytes.length) throw new DerError('trailing bytes');
  return expectTag(element, tag);
}

export function expectTag(element: Element | undefined, tag: number): Element {
  if (element?.tag !== tag)
    throw new DerError(`expected tag ${tag}, found ${element === undefined ? 'the end' : element.tag}`);
  return element;
}

/** The elements in a constructed element, up to a limit. */
export function children({ content }: Element): Element[] {
  const elements: Element[] = [];
  for (let at = 0; at < content.length; ) {
    if (elements.length === MAX_CHILDREN) throw new DerError('too many elements');
    const element = readElementAt(content, at);
    at += element.encoded.length;
    elements.push(element);
  }
  return elements;
}

export function readOid(element: Element | undefined): string {
  const { content } = expectTag(element, TAG.oid);
  if (content.length === 0 || content.length > 64) throw new DerError('an empty or overlong object identifier');
  const arcs: number[] = [];
  let arc = 0;
  let inArc = false;
  for (const byte of content) {
    if (!inArc && byte === 0x80) throw new DerError('a padded object identifier');
    inArc = true;
    arc = arc * 128 + (byte & 0x7f);
    if (arc > Number.MAX_SAFE_INTEGER / 128) throw new DerError('an object identifier arc out of range');
    if (byte < 0x80) {
      arcs.push(arc);
      arc = 0;
      inArc = false;
    }
  }
  if (inArc) throw new DerError('a truncated object identifier');
  const [joint = 0, ...rest] = arcs;
  const root = Math.min(2, Math.floor(joint / 40));
  return [root, joint - root * 40, ...rest].join('.');
}

/** Serial numbers are compared in this form. */
export function readIntegerHex(element: Element | undefined): string {
  const { content } = expectTag(element, TAG.integer);
  checkInteger(content, 0, content.length);
  return content.toString('hex');
}

/** X.690 §8.3.2: not empty, no padding. */
export function checkInteger(bytes: Uint8Array, from: number, to: number): void {
  if (from === to) throw new DerError('an empty integer');
  const first = bytes[from] as number;
  const second = bytes[from + 1] as number;
  if (to - from > 1 && ((first === 0 && second < 0x80) || (first === 0xff && second >= 0x80)))
    throw new DerError('a padded integer');
}

/** Not negative. */
export function readSmallInteger(element: Element | undefined): number {
  const hex = readIntegerHex(element);
  const value = Number.parseInt(hex, 16);
  if (hex.length > 10 || Number.parseInt(hex.slice(0, 2), 16) >= 0x80) throw new DerError('an integer out of range');
  return value;
}

export function readBoolean(element: Element | undefined): boolean {
  const { content } = expectTag(element, TAG.boolean);
  if (content.length !== 1 || (content[0] !== 0 && content[0] !== 0xff)) throw new DerError('not a boolean');
  return content[0] === 0xff;
}

/** The positions of the bits that are set. */
export function readNamedBits(element: Element | undefined): ReadonlySet<number> {
  const { content } = expectTag(element, TAG.bitString);
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

/** A bit string of whole bytes, such as a signature. */
export function readBitStringBytes(element: Element | undefined): Buffer {
  const { content } = expectTag(element, TAG.bitString);
  if (content[0] !== 0) throw new DerError('a bit string of incomplete bytes');
  return content.subarray(1);
}

/** UTCTime or GeneralizedTime in the form of RFC 5280 §4.1.2.5: in UTC, with seconds. */
export function readTime(element: Element | undefined): number {
  if (element === undefined) throw new DerError('not a time');
  return readTimeAt(element.content, { tag: element.tag, from: 0, to: element.content.length });
}

export function readTimeAt(bytes: Uint8Array, { tag, from, to }: Span): number {
  const digits = tag === TAG.utcTime ? 12 : tag === TAG.generalizedTime ? 14 : 0;
  if (digits === 0 || to - from !== digits + 1 || bytes[to - 1] !== 0x5a) throw new DerError('not a time');
  const shortYear = twoDigits(bytes, from);
  const year =
    digits === 12 ? shortYear + (shortYear >= 50 ? 1_900 : 2_000) : shortYear * 100 + twoDigits(bytes, from + 2);
  const rest = to - 11;
  const month = twoDigits(bytes, rest);
  const day = twoDigits(bytes, rest + 2);
  const hour = twoDigits(bytes, rest + 4);
  const minute = twoDigits(bytes, rest + 6);
  const second = twoDigits(bytes, rest + 8);
  const isDate = month >= 1 && month <= 12 && day >= 1 && day <= getDaysInMonth(year, month);
  if (!isDate || hour > 23 || minute > 59 || second > 59) throw new DerError('an invalid time');
  return daysSinceEpoch(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
}

const DAYS_IN_MONTH = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] as const;

const getDaysInMonth = (year: number, month: number): number =>
  month === 2 && year % 4 === 0 && (year % 100 !== 0 || year % 400 === 0) ? 29 : (DAYS_IN_MONTH[month - 1] ?? 0);

/** In the Gregorian calendar. Faster than `Date.UTC`, which also reads the years 0 to 99 as 1900 to 1999. */
function daysSinceEpoch(year: number, month: number, day: number): number {
  const shiftedYear = month > 2 ? year : year - 1;
  const leapDays = Math.floor(shiftedYear / 4) - Math.floor(shiftedYear / 100) + Math.floor(shiftedYear / 400);
  const dayOfYear = Math.floor((153 * (month > 2 ? month - 3 : month + 9) + 2) / 5) + day - 1;
  return shiftedYear * 365 + leapDays + dayOfYear - 719_468;
}

function twoDigits(bytes: Uint8Array, at: number): number {
  const tens = (bytes[at] as number) - 0x30;
  const ones = (bytes[at + 1] as number) - 0x30;
  if (tens < 0 || tens > 9 || ones < 0 || ones > 9) throw new DerError('not a time');
  return tens * 10 + ones;
}

// `ignoreBOM` keeps byte order marks in the text: names that differ in one stay different.
const UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
const UTF16 = new TextDecoder('utf-16be', { ignoreBOM: true });

export type DecodedText =
  | { readonly ok: true; readonly text: string }
  | { readonly ok: false; readonly problem: string };

/** Decodes a string by its type. Types that implementations interpret differently are rejected. */
export function decodeText({ tag, content }: Element): DecodedText {
  const fail = (problem: string): DecodedText => ({ ok: false, problem });
  switch (tag) {
    case TAG.utf8String:
      try {
        return { ok: true, text: UTF8.decode(content) };
      } catch {
        return fail('it is not UTF-8');
      }
    case TAG.printableString: {
      const text = content.toString('latin1');
      // `@`, `*` and `_` are not allowed by X.680 §41.4, but occur in practice.
      return /^[A-Za-z0-9 '()+,./:=?@_&*-]*$/.test(text) ? { ok: true, text } : fail('it is not a PrintableString');
    }
    case TAG.ia5String: {
      if (content.some((byte) => byte > 0x7f)) return fail('it is not an IA5String');
      return { ok: true, text: content.toString('latin1') };
    }
    case TAG.bmpString: {
      if (content.length % 2 !== 0) return fail('it is not a BMPString');
      const text = UTF16.decode(content);
      // BMPString is UCS-2, without surrogates.
      return /[\ud800-\udfff\ufffd]/.test(text) ? fail('it is not a BMPString') : { ok: true, text };
    }
    case TAG.t61String:
      return fail('it is a T61String, whose characters are ambiguous');
    default:
      return fail('its string type is not accepted');
  }
}

/** One DER element: tag, minimal length, content. */
export function writeElement(tag: number, ...parts: readonly Uint8Array[]): Buffer {
  const content = Buffer.concat(parts);
  if (content.length < 0x80) return Buffer.concat([Buffer.from([tag, content.length]), content]);
  const length: number[] = [];
  for (let rest = content.length; rest > 0; rest = Math.floor(rest / 256)) length.unshift(rest % 256);
  return Buffer.concat([Buffer.from([tag, 0x80 | length.length, ...length]), content]);
}
