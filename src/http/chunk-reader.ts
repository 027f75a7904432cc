import { sliceTrimmed } from './fold-field-name.ts';

/** RFC 9112 §7.1: a size in hex, and extensions, which are ignored. */
const STRICT_SIZE_LINE =
  /^([0-9A-Fa-f]{1,8})(?:;[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:=(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+|"(?:[\t\x20\x21\x23-\x5b\x5d-\x7e\x80-\xff]|\\[\t\x20-\x7e\x80-\xff])*"))?)*$/;
/** Servers are less exact. */
const SIZE_LINE = /^([0-9A-Fa-f]{1,8})(?:;[\t\x20-\x7e\x80-\xff]*)?$/;
const TRAILER_FIELD = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*$/;
const MAX_LINE_BYTES = 1_024;
/** RFC 9110 §6.5.1: fields that must not be in trailers. */
const FRAMING_FIELD = /^(?:content-length|transfer-encoding|host)[\t ]*:/i;
/** How long all extensions and all trailers together may be. */
const MAX_EXTRA_BYTES = 16_384;
const LF = 0x0a;
const CR = 0x0d;

/** After a read: more is needed, the body is complete, or it is malformed. */
export type ChunkedBodyState = 'more' | 'complete' | 'malformed';

/** Decodes a chunked body that arrives in parts. Chunk extensions are ignored. */
export class ChunkedBodyReader {
  /** How far the last piece was read. */
  offset = 0;
  /** Names and values of the trailers; undefined: there are none. */
  trailers: string[] | undefined = undefined;
  #stage: 'size' | 'data' | 'cr' | 'lf' | 'trailers' = 'size';
  readonly #isStrict: boolean;
  #chunkBytesLeft = 0;
  #line = '';
  /** Bytes of extensions and trailers. */
  #extraBytes = 0;

  /** `isStrict`: the body of a request. */
  constructor(isStrict = false) {
    this.#isStrict = isStrict;
  }

  /** `onData` gets the position of data in `bytes`. */
  read(
    bytes: Buffer,
    from: number,
    end: number,
    onData: (bytes: Buffer, from: number, end: number) => void,
  ): ChunkedBodyState {
    this.offset = from;
    while (this.offset < end) {
      switch (this.#stage) {
        case 'data': {
          const to = Math.min(end, this.offset + this.#chunkBytesLeft);
          onData(bytes, this.offset, to);
          this.#chunkBytesLeft -= to - this.offset;
          this.offset = to;
          if (this.#chunkBytesLeft === 0) this.#stage = 'cr';
          break;
        }
        case 'cr':
          if (bytes[this.offset++] !== CR) return 'malformed';
          this.#stage = 'lf';
          break;
        case 'lf':
          if (bytes[this.offset++] !== LF) return 'malformed';
          this.#stage = 'size';
          break;
        case 'size':
        case 'trailers': {
          const line = this.#readLine(bytes, end);
          if (line === undefined) return this.#line.length > MAX_LINE_BYTES ? 'malformed' : 'more';
          if (!line.endsWith('\r')) return 'malformed';
          const progress = this.#readSizeOrTrailer(line.slice(0, -1));
          if (progress !== 'more') return progress;
        }
      }
    }
    return 'more';
  }

  #readSizeOrTrailer(line: string): ChunkedBodyState {
    if (this.#stage === 'trailers') {
      if (line === '') return 'complete';
      this.#extraBytes += line.length;
      if (this.#isStrict && FRAMING_FIELD.test(line)) return 'malformed';
      if (this.#extraBytes > MAX_EXTRA_BYTES || !TRAILER_FIELD.test(line)) return 'malformed';
      const colon = line.indexOf(':');
      (this.trailers ??= []).push(line.slice(0, colon), sliceTrimmed(line, colon + 1));
      return 'more';
    }
    const size = (this.#isStrict ? STRICT_SIZE_LINE : SIZE_LINE).exec(line)?.[1];
    if (size === undefined) return 'malformed';
    this.#extraBytes += line.length - size.length;
    if (this.#extraBytes > MAX_EXTRA_BYTES) return 'malformed';
    this.#chunkBytesLeft = Number.parseInt(size, 16);
    this.#stage = this.#chunkBytesLeft === 0 ? 'trailers' : 'data';
    return 'more';
  }

  /** Undefined until the line is complete. */
  #readLine(bytes: Buffer, end: number): string | undefined {
    // The buffer is reused: bytes after `end` are not part of this response.
    const found = bytes.indexOf(LF, this.offset);
    const isComplete = found >= 0 && found < end;
    const to = isComplete ? found : end;
    this.#line += bytes.toString('latin1', this.offset, Math.min(to, this.offset + MAX_LINE_BYTES + 1));
    this.offset = isComplete ? to + 1 : end;
    if (!isComplete || this.#line.length > MAX_LINE_BYTES) return undefined;
    const line = this.#line;
    this.#line = '';
    return line;
  }
}
