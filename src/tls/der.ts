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

function elementAt(bytes: Buffer, start: number): Element {
  const tag = bytes[start];
  const first = bytes[start + 1];
  if (tag === undefined || first === undefined) throw new DerError('ends within a header');
  if ((tag & 0x1f) === 0x1f) throw new DerError('a tag number above 30');
  let at = start + 2;
  let length = first;
  if (first >= 0x80) {
    const size = first & 0x7f;
    if (size === 0) throw new DerError('an indefinite length');
    if (size > 4 || at + size > bytes.length) throw new DerError('a length that cannot be');
    length = bytes.readUIntBE(at, size);
    if (length < 0x80 || length < 2 ** (8 * (size - 1))) throw new DerError('a length that is not minimal');
    at += size;
  }
  const end = at + length;
  if (end > bytes.length) throw new DerError('an element longer than what holds it');
  return { tag, content: bytes.subarray(at, end), whole: bytes.subarray(start, end) };
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
  const [first, second] = content;
  if (first === undefined) throw new DerError('an empty integer');
  if (second !== undefined && ((first === 0 && second < 0x80) || (first === 0xff && second >= 0x80)))
    throw new DerError('a padded integer');
  return content.toString('hex');
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
  const text = element?.content.toString('latin1') ?? '';
  let full: string | undefined;
  if (element?.tag === TAG.utcTime && /^\d{12}Z$/.test(text))
    full = `${Number(text.slice(0, 2)) >= 50 ? '19' : '20'}${text}`;
  else if (element?.tag === TAG.generalizedTime && /^\d{14}Z$/.test(text)) full = text;
  if (full === undefined) throw new DerError('not a time');
  const iso = full.replace(/^(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)Z$/, '$1-$2-$3T$4:$5:$6Z');
  const time = Date.parse(iso);
  // Date.parse takes 31 February for 3 March; a time that does not come back as written is none.
  if (Number.isNaN(time) || new Date(time).toISOString().replace('.000', '') !== iso)
    throw new DerError('a time that cannot be');
  return time / 1_000;
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
