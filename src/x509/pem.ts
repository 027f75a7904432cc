/** A strict PEM reader (RFC 7468) that allows text between the blocks, but does not take a truncated file for a complete one. */
export class PemError extends Error {}

interface PemBlock {
  readonly label: string;
  /** Throws a `PemError` if the body is not base64. */
  readonly decode: () => Buffer;
}

const DASHES_LINE = /^[ \t]*(-----[^\r\n]*)/gm;
const DELIMITER = /^-----(BEGIN|END) ([\x21-\x2c\x2e-\x7e]+(?:[ -][\x21-\x2c\x2e-\x7e]+)*)-----[ \t]*$/;
const MAX_DELIMITER_LENGTH = 128;
const BEGIN = '-----BEGIN ';

/** Throws a `PemError` whose message completes "<file> ...". */
export function parsePem(bytes: Buffer): PemBlock[] {
  // Without a byte order mark.
  const text = bytes.toString('latin1').replace(/^\xef\xbb\xbf/, '');
  const blocks: PemBlock[] = [];
  let current: { readonly label: string; readonly from: number } | undefined;
  for (const { 0: found, 1: line = '', index } of text.matchAll(DASHES_LINE)) {
    const end = index + found.length;
    const fail = (problem: string): never => {
      throw new PemError(`is not valid PEM: line ${text.slice(0, index).split('\n').length} ${problem}`);
    };
    const [, kind, label = ''] = DELIMITER.exec(line.slice(0, MAX_DELIMITER_LENGTH)) ?? [];
    if (kind === 'BEGIN') {
      if (current !== undefined) throw createUnterminatedError(current.label);
      current = { label, from: end };
    } else if (kind === 'END') {
      if (current?.label !== label) return fail('ends a block that did not begin');
      const body = text.slice(current.from, index);
      blocks.push({ label, decode: () => decodeBase64(body, label) });
      current = undefined;
    } else if (current !== undefined || end === text.length || /[^-]/.test(line))
      // Other lines of dashes are text, unless one ends the file: that may be a truncated BEGIN line.
      fail('is neither a BEGIN nor an END line');
  }
  if (current !== undefined) throw createUnterminatedError(current.label);
  const lastLine = /[^\r\n]*$/.exec(text.slice(-BEGIN.length))?.[0].trimStart() ?? '';
  if (lastLine !== '' && BEGIN.startsWith(lastLine))
    throw new PemError('is truncated: its last line is the beginning of a BEGIN line');
  return blocks;
}

const createUnterminatedError = (label: string): PemError =>
  new PemError(`is truncated or damaged: a block "${label}" has no END line`);

/** Strict, unlike `Buffer.from(text, 'base64')`, which skips invalid characters. RFC 7468 §3 also allows vertical tabs. */
function decodeBase64(body: string, label: string): Buffer {
  try {
    const bytes = Uint8Array.fromBase64(body.replaceAll('\v', ' '), { lastChunkHandling: 'strict' });
    return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
  } catch {
    throw new PemError(`is damaged: the block "${label}" is not base64`);
  }
}
