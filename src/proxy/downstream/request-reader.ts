import type { ListenerLimits } from '../../listener/listener-options.ts';
import type { CachedFields, HeaderCache } from './header-cache.ts';
import {
  decodeChunked,
  type FallbackReason,
  HEAD_END,
  hasExpectedFraming,
  hasUnsupportedBytes,
  parseRequestLine,
} from './request-parser.ts';

type RequestReaderLimits = Required<Pick<ListenerLimits, 'headers' | 'url'>>;

/** Reads in which a head, or a chunked body behind its head, must arrive. The full path waits longer. */
const MAX_HEAD_READS = 8;
const MAX_CHUNKED_READS = 16;
const MAX_CHUNKED_BYTES = 65_536;

/** The beginning of the next request on a connection: bytes that have arrived, and what they say once the head is complete. */
export class RequestReader {
  /** Everything that has arrived and was not taken; undefined: nothing. */
  bytes: Buffer | undefined = undefined;
  method = '';
  target = '';
  fields!: CachedFields;
  readonly #limits: RequestReaderLimits;
  readonly #cache: HeaderCache;
  #reads = 0;
  #bodyStart = 0;
  /** Infinity: the end of a chunked body has not arrived. */
  #end = 0;
  /** The decoded content of a chunked body. */
  #content: Buffer | undefined = undefined;

  constructor(limits: RequestReaderLimits, cache: HeaderCache) {
    this.#limits = limits;
    this.#cache = cache;
  }

  add(part: Buffer): void {
    this.bytes = this.bytes === undefined ? part : Buffer.concat([this.bytes, part]);
  }

  /** One more read that belongs to the next request. */
  countRead(): void {
    this.#reads += 1;
  }

  /** Reads the head. `isLast`: no more bytes will arrive. */
  readHead(isLast: boolean): 'complete' | 'incomplete' | FallbackReason {
    const bytes = this.bytes as Buffer;
    const text = bytes.toString('latin1', 0, Math.min(bytes.length, this.#limits.headers));
    const end = text.indexOf(HEAD_END);
    if (end < 0) return this.#checkIncomplete(text, isLast);
    const lineEnd = text.indexOf('\r\n');
    const line = parseRequestLine(text.slice(0, lineEnd));
    if (line === undefined) return 'head';
    if (line.target.length > this.#limits.url) return 'size';
    const fields = this.#cache.read(text.slice(lineEnd + 2, end + 2));
    if (typeof fields === 'string') return fields;
    if (!hasExpectedFraming(line.method, fields)) return 'framing';
    this.method = line.method;
    this.target = line.target;
    this.fields = fields;
    this.#bodyStart = end + HEAD_END.length;
    return 'complete';
  }

  #checkIncomplete(text: string, isLast: boolean): 'incomplete' | FallbackReason {
    if (text.length >= this.#limits.headers) return 'size';
    return this.#reads > MAX_HEAD_READS || isLast || hasUnsupportedBytes(text) ? 'head' : 'incomplete';
  }

  /** Finds the body, as far as it has arrived. Undefined: found. */
  readBody(maxBytes: number): FallbackReason | undefined {
    const bytes = this.bytes as Buffer;
    const { framing, contentLength = 0 } = this.fields;
    if (framing !== 'chunked') {
      if (contentLength > maxBytes) return 'size';
      this.#end = this.#bodyStart + contentLength;
      this.#content = undefined;
      return undefined;
    }
    const decoded = decodeChunked(bytes, this.#bodyStart);
    if (decoded === 'unusual' || bytes.length - this.#bodyStart > MAX_CHUNKED_BYTES) return 'body';
    if (decoded !== 'incomplete' && decoded.content.length > maxBytes) return 'size';
    this.#end = decoded === 'incomplete' ? Number.POSITIVE_INFINITY : decoded.end;
    this.#content = decoded === 'incomplete' ? undefined : decoded.content;
    return undefined;
  }

  /** All of the request has arrived. */
  get isComplete(): boolean {
    return (this.bytes as Buffer).length >= this.#end;
  }

  /** Bytes of the body that are still to arrive; not for chunked bodies. */
  get missing(): number {
    return Math.max(0, this.#end - (this.bytes as Buffer).length);
  }

  /** The body, as far as it has arrived; of a chunked body only when all of it has. */
  get content(): Buffer {
    return this.#content ?? (this.bytes as Buffer).subarray(this.#bodyStart, this.#end);
  }

  get mayWaitForChunks(): boolean {
    return this.#reads <= MAX_CHUNKED_READS;
  }

  /** Removes the request from `bytes`. */
  take(): void {
    const bytes = this.bytes as Buffer;
    this.bytes = bytes.length > this.#end ? bytes.subarray(this.#end) : undefined;
    this.#content = undefined;
    this.#reads = 0;
  }
}
