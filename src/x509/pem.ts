/** A strict PEM reader (RFC 7468) that allows text between the blocks, but does not take a truncated file for a complete one. */
export class PemError extends Error {}

interface PemBlock {
  readonly label: string;
  /** Throws a `PemError` if the body is not base64. */
  readonly decode: () => Buffer;
}

const DELIMITER = /^-----(BEGIN|END) ([\x21-\x2c\x2e-\x7e]+(?:[ -][\x21-\x2c\x2e-\x7e]+)*)-----[ \t]*$/;
const MAX_DELIMITER_LENGTH = 128;
const DASHES = Buffer.from('-----');
const DASH = 0x2d;
const BEGIN = '-----BEGIN ';
const BYTE_ORDER_MARK = Buffer.from('\ufeff');
const LF = 0x0a;
const LINE_ENDS: ReadonlySet<number | undefined> = new Set([LF, 0x0d]);
const BLANKS: ReadonlySet<number | undefined> = new Set([0x20, 0x09]);

/**
 * The blocks, one after the other: the bytes may come from an attacker, and nothing is collected from them. Throws a
 * `PemError` whose message completes "<file> ...".
 */
export function* parsePem(bytes: Buffer): Generator<PemBlock, void> {
  const start = bytes.subarray(0, BYTE_ORDER_MARK.length).equals(BYTE_ORDER_MARK) ? BYTE_ORDER_MARK.length : 0;
  let current: { readonly label: string; readonly from: number } | undefined;
  for (const { from, dashes, to } of findDashedLines(bytes, start)) {
    const fail = (problem: string): never => {
      throw new PemError(`is not valid PEM: line ${countLines(bytes, from)} ${problem}`);
    };
    const line = bytes.toString('latin1', dashes, Math.min(to, dashes + MAX_DELIMITER_LENGTH));
    const [, kind, label = ''] = DELIMITER.exec(line) ?? [];
    if (kind === 'BEGIN') {
      if (current !== undefined) throw createUnterminatedError(current.label);
      current = { label, from: to };
    } else if (kind === 'END') {
      if (current?.label !== label) return fail('ends a block that did not begin');
      const body = bytes.subarray(current.from, from);
      yield { label, decode: () => decodeBase64(body, label) };
      current = undefined;
    } else if (current !== undefined || to === bytes.length || !isDashesOnly(bytes, dashes, to))
      // Other lines of dashes are text, unless one ends the file: that may be a truncated BEGIN line.
      fail('is neither a BEGIN nor an END line');
  }
  if (current !== undefined) throw createUnterminatedError(current.label);
  const ending = bytes.toString('latin1', Math.max(start, bytes.length - BEGIN.length));
  const lastLine = /[^\r\n]*$/.exec(ending)?.[0].trimStart() ?? '';
  if (lastLine !== '' && BEGIN.startsWith(lastLine))
    throw new PemError('is truncated: its last line is the beginning of a BEGIN line');
}

/** Lines that begin with five dashes, after blanks or none: where the line, its dashes and its end are. */
function* findDashedLines(bytes: Buffer, start: number) {
  for (let dashes = bytes.indexOf(DASHES, start), to = start; dashes >= 0; dashes = bytes.indexOf(DASHES, to)) {
    let from = dashes;
    while (from > to && BLANKS.has(bytes[from - 1])) from -= 1;
    const isLine = from === start || LINE_ENDS.has(bytes[from - 1]);
    to = dashes + DASHES.length;
    while (to < bytes.length && !LINE_ENDS.has(bytes[to])) to += 1;
    if (isLine) yield { from, dashes, to };
  }
}

function isDashesOnly(bytes: Buffer, from: number, to: number): boolean {
  for (let at = from; at < to; at += 1) if (bytes[at] !== DASH) return false;
  return true;
}

function countLines(bytes: Buffer, end: number): number {
  let count = 1;
  for (let at = 0; at < end; at += 1) if (bytes[at] === LF) count += 1;
  return count;
}

const createUnterminatedError = (label: string): PemError =>
  new PemError(`is truncated or damaged: a block "${label}" has no END line`);

/** Strict, unlike `Buffer.from(text, 'base64')`, which skips invalid characters. RFC 7468 §3 also allows vertical tabs. */
function decodeBase64(body: Buffer, label: string): Buffer {
  try {
    const bytes = Uint8Array.fromBase64(body.toString('latin1').replaceAll('\v', ' '), {
      lastChunkHandling: 'strict',
    });
    return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
  } catch {
    throw new PemError(`is damaged: the block "${label}" is not base64`);
  }
}
