/**
 * Lookup in raw header lists (`IncomingMessage.rawHeaders`: names and values alternate, nothing merged). Field names are
 * case-insensitive (RFC 9110 §5.1); `name` is lower case.
 */

export function getHeaderValues(rawHeaders: readonly string[], name: string): string[] {
  const values: string[] = [];
  for (let at = 0; at + 1 < rawHeaders.length; at += 2)
    if (isNamed(rawHeaders[at], name)) values.push(rawHeaders[at + 1] ?? '');
  return values;
}

/** Undefined when the field is absent or repeated. */
export function getSingleHeader(rawHeaders: readonly string[], name: string): string | undefined {
  let value: string | undefined;
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    if (!isNamed(rawHeaders[at], name)) continue;
    if (value !== undefined) return undefined;
    value = rawHeaders[at + 1];
  }
  return value;
}

const isNamed = (candidate = '', name: string): boolean =>
  candidate.length === name.length && candidate.toLowerCase() === name;

/** Field lines of HTTP/1.1, each with its CRLF. */
export function formatFields(list: readonly string[], start = 0, end = list.length): string {
  let text = '';
  for (let at = start; at + 1 < end; at += 2) text += `${list[at]}: ${list[at + 1]}\r\n`;
  return text;
}

const LAST_CHUNK = '0\r\n\r\n';

/** RFC 9112 §7.1.2: the end of a chunked body. */
export const formatLastChunk = (trailers: readonly string[] | undefined): string =>
  trailers === undefined ? LAST_CHUNK : `0\r\n${formatFields(trailers)}\r\n`;
