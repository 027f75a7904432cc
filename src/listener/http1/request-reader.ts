import { METHODS } from 'node:http';
import type { HttpVersion, RequestHead } from '../../http/request-head.ts';
import { type HeadCache, parseHead } from '../head-cache.ts';

/** RFC 9112 §3, with the usual methods and the origin-form of §3.2.1. */
const USUAL_LINE = /^(?:GET|HEAD|POST|PUT|PATCH|DELETE) \/[\x21-\x7e]* HTTP\/1\.1$/;
/** RFC 9112 §3: exactly one space between the parts. */
const REQUEST_LINE = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP\/([0-9])\.([0-9])$/;
const KNOWN_METHODS: ReadonlySet<string> = new Set(METHODS);
const USUAL_METHODS = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD'] as const;
const VERSION_LENGTH = ' HTTP/1.1'.length;
const HEAD_END = '\r\n\r\n';
const CR = 0x0d;
const LF = 0x0a;

/** A malformed head, one that is too large, or one of another version: the status of the response. */
export type HeadFault = 400 | 431 | 505;

/** The bytes of a connection that were not processed, and the head of the request that they begin with. */
export class RequestReader {
  /** Everything that has arrived and was not taken; undefined: nothing. */
  bytes: Buffer | undefined = undefined;
  method = '';
  target = '';
  version: HttpVersion = '1.1';
  head!: RequestHead;
  readonly #maxBytes: number;
  readonly #cache: HeadCache;
  /** Where `bytes` is, with room for more; undefined: it is a part of a read. */
  #room: Buffer | undefined = undefined;
  /** Up to where the end of the head was not found. */
  #scanned = 0;

  constructor(maxBytes: number, cache: HeadCache) {
    this.#maxBytes = maxBytes;
    this.#cache = cache;
  }

  add(part: Buffer): void {
    const { bytes } = this;
    if (bytes === undefined) {
      this.bytes = part;
      return;
    }
    const length = bytes.length + part.length;
    let room = this.#room;
    if (room === undefined || room.length < length) {
      room = Buffer.allocUnsafe(2 * length);
      bytes.copy(room);
      this.#room = room;
    }
    part.copy(room, bytes.length);
    this.bytes = room.subarray(0, length);
  }

  /** Removes the first bytes. */
  consume(count: number): void {
    const { bytes } = this;
    if (bytes === undefined || count === 0) return;
    this.bytes = bytes.length > count ? bytes.subarray(count) : undefined;
    // What was taken may still be in use.
    this.#room = undefined;
    this.#scanned = 0;
  }

  /** Reads a head, and removes it from `bytes`. */
  readHead(): 'complete' | 'incomplete' | HeadFault {
    this.#skipEmptyLines();
    const { bytes } = this;
    if (bytes === undefined) return 'incomplete';
    if (this.#scanned > 0 && bytes.indexOf(HEAD_END, Math.max(0, this.#scanned - 3), 'latin1') < 0)
      return this.#checkIncomplete(bytes);
    const text = bytes.toString('latin1', 0, Math.min(bytes.length, this.#maxBytes));
    const end = text.indexOf(HEAD_END);
    if (end < 0) return this.#checkIncomplete(bytes);
    const lineEnd = text.indexOf('\r\n');
    const fault = this.#readLine(text.slice(0, lineEnd));
    if (fault !== undefined) return fault;
    const block = text.slice(lineEnd + 2, end + 2);
    const head = this.version === '1.1' ? this.#cache.read(block) : parseHead(block, this.version);
    if (head === undefined) return 400;
    this.head = head;
    this.consume(end + HEAD_END.length);
    return 'complete';
  }

  #readLine(line: string): HeadFault | undefined {
    if (USUAL_LINE.test(line)) {
      // One of the constants, not a slice of the input: V8 compares identical strings by their address.
      for (const method of USUAL_METHODS)
        if (line.startsWith(method)) {
          this.method = method;
          break;
        }
      this.target = line.slice(this.method.length + 1, line.length - VERSION_LENGTH);
      this.version = '1.1';
      return undefined;
    }
    const [, method, target, major, minor] = REQUEST_LINE.exec(line) ?? [];
    if (method === undefined || target === undefined || !KNOWN_METHODS.has(method)) return 400;
    if (major === '2') return 505;
    if (major !== '1' || (minor !== '0' && minor !== '1')) return 400;
    this.method = method;
    this.target = target;
    this.version = minor === '0' ? '1.0' : '1.1';
    return undefined;
  }

  /** RFC 9112 §2.2: a server ignores empty lines before a request. */
  #skipEmptyLines(): void {
    const { bytes } = this;
    if (bytes === undefined || bytes[0] !== CR) return;
    let at = 0;
    while (bytes[at] === CR && bytes[at + 1] === LF) at += 2;
    this.consume(at);
  }

  /** RFC 9112 §2.2: a bare CR or LF is not a line end, and a control character never becomes a part of a head. */
  #checkIncomplete(bytes: Buffer): 'incomplete' | HeadFault {
    if (bytes.length >= this.#maxBytes) return 431;
    for (let at = this.#scanned; at < bytes.length; at += 1) {
      const byte = bytes[at] as number;
      const isAfterCr = at > 0 && bytes[at - 1] === CR;
      if (byte === LF ? !isAfterCr : isAfterCr || (byte < 0x20 && byte !== CR && byte !== 0x09) || byte === 0x7f)
        return 400;
    }
    this.#scanned = bytes.length;
    return 'incomplete';
  }
}
