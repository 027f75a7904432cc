/**
 * A strict reader of PEM files (RFC 7468). Explanatory text between the blocks is allowed; a block that does not end, an
 * end without its beginning and a body that is not base64 are errors. A reader that skips them would take a file that was
 * cut short for a whole one.
 */
export class PemError extends Error {}

export interface PemBlock {
  readonly label: string;
  /** The bytes in the body. Throws a `PemError` if it is not base64. */
  readonly decode: () => Buffer;
}

const MARK = '-----';
const DELIMITER = /^-----(BEGIN|END) ([\x21-\x2c\x2e-\x7e]+(?:[ -][\x21-\x2c\x2e-\x7e]+)*)-----[ \t]*$/;
const LONGEST_DELIMITER = 128;
const BEGIN = '-----BEGIN ';

/** Every block of the file. Its error message completes "<file> ...". */
export function readPem(bytes: Buffer): PemBlock[] {
  const blocks: PemBlock[] = [];
  let begun: { readonly label: string; readonly from: number } | undefined;
  let end = 0;
  for (let at = nextMark(bytes, 0); at >= 0; at = nextMark(bytes, end)) {
    end = lineEnd(bytes, at);
    const line = bytes.toString('latin1', at, Math.min(end, at + LONGEST_DELIMITER));
    const [, kind, label = ''] = DELIMITER.exec(line) ?? [];
    if (kind === undefined && (begun !== undefined || !isRule(bytes, at, end)))
      throw new PemError(`is not sound PEM: line ${lineAt(bytes, at)} is neither a BEGIN nor an END line`);
    if (kind === 'BEGIN') {
      if (begun !== undefined) throw endless(begun.label);
      begun = { label, from: end };
    } else if (kind === 'END') {
      if (begun?.label !== label)
        throw new PemError(`is not sound PEM: line ${lineAt(bytes, at)} ends a block that did not begin`);
      const [from, to] = [begun.from, at];
      blocks.push({ label, decode: () => fromBase64(bytes, from, to, label) });
      begun = undefined;
    }
  }
  if (begun !== undefined) throw endless(begun.label);
  if (isCut(bytes)) throw new PemError('is cut short: its last line is the beginning of a BEGIN line');
  return blocks;
}

const endless = (label: string): PemError =>
  new PemError(`is cut short or damaged: a block "${label}" has no END line`);

/** The next five dashes at the beginning of a line. */
function nextMark(bytes: Buffer, start: number): number {
  for (let at = bytes.indexOf(MARK, start); at >= 0; at = bytes.indexOf(MARK, at + 1))
    if (beginsLine(bytes, at)) return at;
  return -1;
}

function beginsLine(bytes: Buffer, at: number): boolean {
  let before = at - 1;
  while (before >= 0 && (bytes[before] === 0x20 || bytes[before] === 0x09)) before -= 1;
  if (before < 0 || bytes[before] === 0x0a || bytes[before] === 0x0d) return true;
  // A byte order mark.
  return before === 2 && bytes[0] === 0xef && bytes[1] === 0xbb && bytes[2] === 0xbf;
}

function lineEnd(bytes: Buffer, at: number): number {
  let end = at;
  while (end < bytes.length && bytes[end] !== 0x0a && bytes[end] !== 0x0d) end += 1;
  return end;
}

const lineAt = (bytes: Buffer, at: number): number => {
  let line = 1;
  for (let found = bytes.indexOf(0x0a); found >= 0 && found < at; found = bytes.indexOf(0x0a, found + 1))
    line += 1;
  return line;
};

/** A line of dashes alone is text, unless it ends the file: then it may be what is left of a BEGIN line. */
function isRule(bytes: Buffer, from: number, to: number): boolean {
  if (to === bytes.length) return false;
  for (let at = from; at < to; at += 1) if (bytes[at] !== 0x2d) return false;
  return true;
}

/** Does the file end in the middle of the word BEGIN, or of the dashes before it? */
function isCut(bytes: Buffer): boolean {
  const tail = bytes.toString('latin1', Math.max(0, bytes.length - BEGIN.length));
  const last = tail.slice(Math.max(tail.lastIndexOf('\n'), tail.lastIndexOf('\r')) + 1).trimStart();
  return last !== '' && BEGIN.startsWith(last);
}

const PAD = 0x3d;
/** The value of each character; 64: white space; 255: not base64. */
const VALUES = (() => {
  const values = new Uint8Array(256).fill(255);
  const alphabet = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/';
  for (let value = 0; value < 64; value += 1) values[alphabet.charCodeAt(value)] = value;
  for (const blank of ' \t\r\n\v\f') values[blank.charCodeAt(0)] = 64;
  return values;
})();

/** `Buffer.from(text, 'base64')` skips what it does not know, and so hides damage. */
function fromBase64(bytes: Buffer, from: number, to: number, label: string): Buffer {
  const decoded = Buffer.allocUnsafeSlow(Math.ceil(((to - from) * 3) / 4));
  let length = 0;
  let bits = 0;
  let digits = 0;
  let padding = 0;
  const damaged = (): PemError => new PemError(`is damaged: the block "${label}" is not base64`);
  for (let at = from; at < to; at += 1) {
    const byte = bytes[at] as number;
    const value = VALUES[byte] as number;
    if (value === 64) continue;
    if (byte === PAD) {
      padding += 1;
      continue;
    }
    if (value === 255 || padding > 0) throw damaged();
    bits = (bits << 6) | value;
    digits += 1;
    if (digits % 4 !== 0) continue;
    decoded[length] = bits >> 16;
    decoded[length + 1] = bits >> 8;
    decoded[length + 2] = bits;
    length += 3;
    bits = 0;
  }
  const rest = digits % 4;
  if (rest === 1 || padding !== (rest === 0 ? 0 : 4 - rest)) throw damaged();
  if (rest === 2) {
    if ((bits & 0x0f) !== 0) throw damaged();
    decoded[length] = bits >> 4;
    length += 1;
  } else if (rest === 3) {
    if ((bits & 0x03) !== 0) throw damaged();
    decoded[length] = bits >> 10;
    decoded[length + 1] = bits >> 2;
    length += 2;
  }
  return decoded.subarray(0, length);
}
