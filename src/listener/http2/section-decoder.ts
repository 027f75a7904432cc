import { HpackDecoder } from './hpack-decoder.ts';
import { type FieldLimits, RequestFields } from './request-fields.ts';

/** Header sections are cached as long as the dynamic table does not change, and the connection is not idle. */
const MAX_CACHED_SECTIONS = 16;
const MAX_CACHED_SECTION_LENGTH = 1_024;
/** Decoded: a few bytes can stand for kilobytes of the dynamic table. */
const MAX_CACHED_SECTION_SIZE = 4_096;
/** An idle connection keeps no more: clients have one or two sections that they repeat. */
const MAX_IDLE_CACHE_SIZE = 4_096;

/** Decodes the header sections of one connection. A section that repeats an earlier one byte by byte is decoded once. */
export class SectionDecoder {
  readonly #limits: FieldLimits;
  readonly #decoder = new HpackDecoder();
  readonly #sections = new Map<string, RequestFields>();
  #version = 0;
  #cachedSize = 0;

  constructor(limits: FieldLimits) {
    this.#limits = limits;
  }

  /** `malformed`, `too_large`: the state of the decoder is lost, and the connection must be closed (RFC 9113 §4.3). */
  decode(bytes: Buffer, start: number, end: number): RequestFields | 'malformed' | 'too_large' {
    const decoder = this.#decoder;
    if (this.#version !== decoder.version) {
      this.#clear();
      this.#version = decoder.version;
    }
    const key = end - start <= MAX_CACHED_SECTION_LENGTH ? bytes.toString('latin1', start, end) : undefined;
    const known = key === undefined ? undefined : this.#sections.get(key);
    if (known !== undefined) return known;
    const fields = new RequestFields(this.#limits);
    const outcome = decoder.decode(bytes, start, end, fields);
    if (outcome !== 'complete') return outcome;
    if (key !== undefined) this.#add(key, fields);
    return fields;
  }

  #add(key: string, fields: RequestFields): void {
    const isCacheable = this.#decoder.version === this.#version && fields.isRequest;
    if (!isCacheable || fields.size > MAX_CACHED_SECTION_SIZE) return;
    if (this.#sections.size >= MAX_CACHED_SECTIONS) this.#clear();
    this.#sections.set(key, fields);
    this.#cachedSize += fields.size;
  }

  /** The connection is idle. */
  trimCache(): void {
    if (this.#cachedSize > MAX_IDLE_CACHE_SIZE) this.#clear();
  }

  #clear(): void {
    if (this.#sections.size > 0) this.#sections.clear();
    this.#cachedSize = 0;
  }
}
