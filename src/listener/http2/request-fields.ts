import type { HeaderField } from '../../http2/header-field.ts';
import { type FieldSink, HpackDecoder } from '../../http2/hpack-decoder.ts';

interface FieldLimits {
  /** Bytes as defined by RFC 9113 §6.5.2. */
  readonly size: number;
  readonly count: number;
}

const CONTENT_LENGTH = /^[0-9]{1,15}$/;
/** What a client may exceed the limits by before decoding stops. Below that it gets a 431. */
const EXCESS = 2;

/**
 * The header section of a request, or its trailers. Requests whose section repeats an earlier one byte by byte share this
 * object, so that nothing in it changes after it was decoded.
 */
export class RequestFields implements FieldSink {
  method = '';
  scheme = '';
  path = '';
  authority: string | undefined = undefined;
  /** As the client declared it. */
  contentLength: number | undefined = undefined;
  size = 0;
  isTooLarge = false;
  /** In their order, without pseudo-header fields. */
  readonly #fields: HeaderField[] = [];
  readonly #limits: FieldLimits;
  #isMalformed = false;
  #pseudoFields = 0;
  #text: string | undefined = undefined;

  constructor(limits: FieldLimits) {
    this.#limits = limits;
  }

  add(field: HeaderField): boolean {
    const { size, count } = this.#limits;
    this.size += field.size;
    const total = this.#fields.length + this.#pseudoFields + 1;
    this.isTooLarge = this.size > size || total > count;
    if (this.size > size * EXCESS || total > count * EXCESS) return false;
    const { kind, value } = field;
    if (kind === ':method') {
      this.#addPseudo(this.method === '' && value !== '');
      this.method = value;
    } else if (kind === ':scheme') {
      this.#addPseudo(this.scheme === '' && value !== '');
      this.scheme = value;
    } else if (kind === ':path') {
      this.#addPseudo(this.path === '' && value !== '');
      this.path = value;
    } else if (kind === ':authority') {
      this.#addPseudo(this.authority === undefined);
      this.authority = value;
    } else {
      if (kind === 'invalid') this.#isMalformed = true;
      else if (kind === 'content-length') this.#addContentLength(value);
      this.#fields.push(field);
    }
    return true;
  }

  /** RFC 9113 §8.3: once each, and before all other fields. */
  #addPseudo(isValid: boolean): void {
    if (!isValid || this.#fields.length > 0) this.#isMalformed = true;
    this.#pseudoFields += 1;
  }

  #addContentLength(value: string): void {
    if (this.contentLength !== undefined || !CONTENT_LENGTH.test(value)) this.#isMalformed = true;
    this.contentLength = Number(value);
  }

  /** RFC 9113 §8.3.1. CONNECT has neither scheme nor path, and is not supported. */
  get isRequest(): boolean {
    return !this.#isMalformed && this.method !== '' && this.scheme !== '' && this.path !== '';
  }

  /** RFC 9113 §8.1. */
  get isTrailers(): boolean {
    return !this.#isMalformed && this.#pseudoFields === 0;
  }

  /** Names and values like those of an HTTP/1.1 request: `Host` comes first, and cookies are one field (RFC 9113 §8.2.3). */
  toRawHeaders(): string[] {
    const list: string[] = [];
    if (this.authority !== undefined) list.push('host', this.authority);
    let cookieAt = -1;
    for (const { kind, name, value } of this.#fields) {
      // A differing value is kept: the policy rejects more than one Host.
      if (kind === 'host' && value === this.authority) continue;
      if (kind === 'cookie' && cookieAt >= 0) list[cookieAt] = `${list[cookieAt]}; ${value}`;
      else if (list.push(name, value) > 0 && kind === 'cookie') cookieAt = list.length - 1;
    }
    return list;
  }

  /** The same as the lines of an HTTP/1.1 header section. */
  toText(): string {
    if (this.#text !== undefined) return this.#text;
    let text = this.authority === undefined ? '' : `host: ${this.authority}\r\n`;
    let cookies = 0;
    for (const { kind, value, line } of this.#fields) {
      if (kind === 'host' && value === this.authority) continue;
      if (kind === 'cookie') cookies += 1;
      text += line;
    }
    this.#text = cookies > 1 ? this.#joinLines() : text;
    return this.#text;
  }

  #joinLines(): string {
    const list = this.toRawHeaders();
    let text = '';
    for (let at = 0; at < list.length; at += 2) text += `${list[at]}: ${list[at + 1]}\r\n`;
    return text;
  }
}

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
