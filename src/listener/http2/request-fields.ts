import type { HeaderField } from './header-field.ts';
import type { FieldSink } from './hpack-decoder.ts';

export interface FieldLimits {
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
