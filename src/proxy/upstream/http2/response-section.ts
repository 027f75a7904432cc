import type { HeaderField } from '../../../http2/header-field.ts';
import { type FieldSink, HpackDecoder } from '../../../http2/hpack-decoder.ts';
import { isEventStream } from '../../policy/upstream-rewriter.ts';
import type { ResponseHead } from '../response-head.ts';

/** Bytes as defined by RFC 9113 §6.5.2, and fields. */
export const MAX_SECTION_SIZE = 32_768;
const MAX_FIELDS = 256;
const STATUS = /^[1-5][0-9]{2}$/;
const CONTENT_LENGTH = /^[0-9]{1,15}$/;

/** The header section of a response, or its trailers. */
export class ResponseSection implements FieldSink {
  /** 0: there is none. */
  status = 0;
  isMalformed = false;
  /** Names and values in their order. */
  readonly list: string[] = [];
  #contentLength: string | undefined = undefined;
  #size = 0;
  #hasDate = false;
  #hasLocation = false;
  /** Trailers are likely to follow the body. */
  #expectsTrailers = false;
  /** The last result of `toHead`, and its arguments. */
  #head: ResponseHead | undefined = undefined;
  #form = '';

  add(field: HeaderField): boolean {
    const { name, value, kind } = field;
    this.#size += field.size;
    if (this.#size > MAX_SECTION_SIZE || this.list.length >= 2 * MAX_FIELDS) return false;
    if (name === ':status') {
      if (this.status !== 0 || this.list.length > 0 || !STATUS.test(value)) this.isMalformed = true;
      this.status = Number(value);
      return true;
    }
    if (kind === 'invalid' || name.startsWith(':')) this.isMalformed = true;
    if (kind === 'content-length') {
      if (this.#contentLength !== undefined || !CONTENT_LENGTH.test(value)) this.isMalformed = true;
      this.#contentLength = value;
    } else if (name === 'date') this.#hasDate = true;
    else if (name === 'location') this.#hasLocation = true;
    else if (name === 'trailer' || (name === 'content-type' && value.startsWith('application/grpc')))
      this.#expectsTrailers = true;
    this.list.push(name, value);
    return true;
  }

  /**
   * `isEnd`: nothing follows. A body before trailers has no length for the client: with one, the client would take the message for
   * complete before it has the trailers.
   */
  toHead(isHead: boolean, isEnd: boolean): ResponseHead {
    const form = `${isHead} ${isEnd}`;
    if (this.#head === undefined || this.#form !== form) this.#head = this.#createHead(isHead, isEnd);
    this.#form = form;
    return this.#head;
  }

  #createHead(isHead: boolean, isEnd: boolean): ResponseHead {
    const { status } = this;
    const hasNoBody = isHead || status === 204 || status === 304;
    const hasLength = this.#contentLength !== undefined && !(this.#expectsTrailers && !isEnd);
    const rawHeaders = hasLength || hasNoBody ? this.list : omitContentLength(this.list);
    return {
      status,
      rawHeaders,
      framing: hasNoBody ? 'none' : hasLength ? 'length' : 'chunked',
      length: hasLength && !hasNoBody ? Number(this.#contentLength) : 0,
      isEndUncertain: false,
      isReusable: true,
      keepAlive: undefined,
      isEventStream: isEventStream(rawHeaders),
      hasDate: this.#hasDate,
      hasLocation: this.#hasLocation,
      clientFields: undefined,
    };
  }

  /** As the upstream declared it. */
  get contentLength(): number | undefined {
    return this.#contentLength === undefined ? undefined : Number(this.#contentLength);
  }
}

const omitContentLength = (list: readonly string[]): readonly string[] =>
  list.includes('content-length') ? list.filter((_, at) => list[at - (at % 2)] !== 'content-length') : list;

/** Blocks that are longer are decoded each time. */
const MAX_CACHED_LENGTH = 1_024;

/** Decodes the header sections of one connection. One that repeats the last byte by byte is decoded once. */
export class ResponseDecoder {
  readonly #decoder = new HpackDecoder();
  #lastBlock = '';
  #lastVersion = -1;
  #last: ResponseSection | undefined = undefined;

  /** `malformed`, `too_large`: the state of the decoder is lost, and the connection must be closed (RFC 9113 §4.3). */
  decode(bytes: Buffer, start: number, end: number): ResponseSection | 'malformed' | 'too_large' {
    const decoder = this.#decoder;
    const block = end - start <= MAX_CACHED_LENGTH ? bytes.toString('latin1', start, end) : undefined;
    if (this.#last !== undefined && block === this.#lastBlock && this.#lastVersion === decoder.version)
      return this.#last;
    const { version } = decoder;
    const section = new ResponseSection();
    const outcome = decoder.decode(bytes, start, end, section);
    if (outcome !== 'complete') return outcome;
    // Its effect on the dynamic table would be missing the next time.
    if (block !== undefined && version === decoder.version && section.status >= 200) {
      this.#lastBlock = block;
      this.#lastVersion = version;
      this.#last = section;
    }
    return section;
  }
}
