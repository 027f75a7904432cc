import { TRAILER } from './answer-head.ts';

/** RFC 9112 §7.1: a size in hex, and an extension that nobody reads. */
const SIZE_LINE = /^([0-9A-Fa-f]{1,8})(?:;[\t\x20-\x7e\x80-\xff]*)?$/;
const MAX_LINE = 1_024;
const MAX_TRAILERS = 16_384;
const LF = 0x0a;
const CR = 0x0d;

/** Where reading stopped: more is needed, the body is whole, or it is broken. */
export type ChunkProgress = 'more' | 'whole' | 'broken';

/** Reads a chunked body, in whatever pieces it comes. Extensions and trailers end here: nobody has judged them. */
export class ChunkReader {
  /** How far the last piece was read. */
  at = 0;
  #stage: 'size' | 'data' | 'cr' | 'lf' | 'trailers' = 'size';
  #left = 0;
  #line = '';
  #trailers = 0;

  /** `onData` gets the places of data in `bytes`. */
  read(
    bytes: Buffer,
    from: number,
    end: number,
    onData: (bytes: Buffer, from: number, end: number) => void,
  ): ChunkProgress {
    this.at = from;
    while (this.at < end) {
      switch (this.#stage) {
        case 'data': {
          const to = Math.min(end, this.at + this.#left);
          onData(bytes, this.at, to);
          this.#left -= to - this.at;
          this.at = to;
          if (this.#left === 0) this.#stage = 'cr';
          break;
        }
        case 'cr':
          if (bytes[this.at++] !== CR) return 'broken';
          this.#stage = 'lf';
          break;
        case 'lf':
          if (bytes[this.at++] !== LF) return 'broken';
          this.#stage = 'size';
          break;
        case 'size':
        case 'trailers': {
          const line = this.#readLine(bytes, end);
          if (line === undefined) return this.#line.length > MAX_LINE ? 'broken' : 'more';
          if (!line.endsWith('\r')) return 'broken';
          const progress = this.#take(line.slice(0, -1));
          if (progress !== 'more') return progress;
        }
      }
    }
    return 'more';
  }

  #take(line: string): ChunkProgress {
    if (this.#stage === 'trailers') {
      if (line === '') return 'whole';
      this.#trailers += line.length;
      return this.#trailers <= MAX_TRAILERS && TRAILER.test(line) ? 'more' : 'broken';
    }
    const size = SIZE_LINE.exec(line)?.[1];
    if (size === undefined) return 'broken';
    this.#left = Number.parseInt(size, 16);
    this.#stage = this.#left === 0 ? 'trailers' : 'data';
    return 'more';
  }

  /** Undefined until its end has come. */
  #readLine(bytes: Buffer, end: number): string | undefined {
    // The buffer is used again and again: what stands behind `end` is not of this answer.
    const found = bytes.indexOf(LF, this.at);
    const isWhole = found >= 0 && found < end;
    const to = isWhole ? found : end;
    this.#line += bytes.toString('latin1', this.at, Math.min(to, this.at + MAX_LINE + 1));
    this.at = isWhole ? to + 1 : end;
    if (!isWhole || this.#line.length > MAX_LINE) return undefined;
    const line = this.#line;
    this.#line = '';
    return line;
  }
}
