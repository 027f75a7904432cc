import { CONNECTION_NAMES } from './header-field.ts';
import { STATIC_TABLE } from './static-table.ts';

/*
 * Header blocks of responses (RFC 7541): entries of the static table and literals that are not indexed. A block therefore
 * does not depend on the blocks before it, and can be cached; the dynamic table of the client stays empty.
 */

const indexByField = new Map<string, number>();
const indexByName = new Map<string, number>();
STATIC_TABLE.forEach(([name, value], position) => {
  indexByField.set(`${name}\0${value}`, position + 1);
  if (!indexByName.has(name)) indexByName.set(name, position + 1);
});

/** RFC 7541 §6.3: the dynamic table has no entries. Required once a client has reduced its size (§4.2). */
export const EMPTY_TABLE_UPDATE = 0x20;

/** RFC 9113 §8.2.2: not allowed in HTTP/2. */
const OMITTED_NAMES: ReadonlySet<string> = new Set([...CONNECTION_NAMES, 'http2-settings', 'te']);

/** An integer needs at most this many bytes, and so does the beginning of a field. */
const MAX_INTEGER_BYTES = 6;

/** The most bytes that a field can need. */
export const getMaxFieldBytes = (name: string, value: string): number =>
  name.length + value.length + 2 * MAX_INTEGER_BYTES;

/** Writes a field whose name is in lower case, and returns where it ends. */
export function writeField(out: Buffer, at: number, name: string, value: string): number {
  const known = indexByField.get(`${name}\0${value}`);
  // RFC 7541 §6.1.
  if (known !== undefined) return writeInteger(out, at, 0x80, 0x7f, known);
  return writeString(out, writeFieldName(out, at, name), value);
}

/** The beginning of a literal field that is not indexed (RFC 7541 §6.2.2); its value follows. */
export function encodeFieldName(name: string): Buffer {
  const out = Buffer.alloc(getMaxFieldBytes(name, ''));
  return out.subarray(0, writeFieldName(out, 0, name));
}

function writeFieldName(out: Buffer, at: number, name: string): number {
  const index = indexByName.get(name);
  if (index !== undefined) return writeInteger(out, at, 0, 0x0f, index);
  out[at] = 0;
  return writeString(out, at + 1, name);
}

/** RFC 7541 §5.2, without Huffman coding. Field values are ISO-8859-1. */
export function writeString(out: Buffer, at: number, text: string): number {
  const start = writeInteger(out, at, 0, 0x7f, text.length);
  return start + out.write(text, start, 'latin1');
}

/** RFC 7541 §5.1. */
function writeInteger(out: Buffer, at: number, first: number, mask: number, value: number): number {
  if (value < mask) {
    out[at] = first | value;
    return at + 1;
  }
  out[at] = first | mask;
  let end = at + 1;
  let rest = value - mask;
  for (; rest >= 0x80; rest >>>= 7) out[end++] = (rest & 0x7f) | 0x80;
  out[end++] = rest;
  return end;
}

/** The header block of a response. `list`: names and values; connection-specific fields are omitted. */
export const encodeResponseFields = (status: number, list: readonly string[]): Buffer =>
  encodeFields([[':status', String(status)]], list);

/** The header block of trailers. */
export const encodeTrailers = (list: readonly string[]): Buffer => encodeFields([], list);

function encodeFields(fields: [string, string][], list: readonly string[]): Buffer {
  for (let at = 0; at + 1 < list.length; at += 2) {
    const name = (list[at] as string).toLowerCase();
    if (!OMITTED_NAMES.has(name)) fields.push([name, list[at + 1] as string]);
  }
  const size = fields.reduce((sum, [name, value]) => sum + getMaxFieldBytes(name, value), 0);
  const out = Buffer.allocUnsafeSlow(size);
  let at = 0;
  for (const [name, value] of fields) at = writeField(out, at, name, value);
  return out.subarray(0, at);
}
