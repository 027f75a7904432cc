import { sliceTrimmed } from '../http/fold-field-name.ts';
import { type HttpVersion, RequestHead } from '../http/request-head.ts';
import { TwoGenerationCache } from '../lib/two-generation-cache.ts';

/** RFC 9110 §5.1 and §5.5, RFC 9112 §5: no line folding, no space before the colon, and every line ends in CRLF. */
const FIELD_LINES = /^(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n)*$/;

/** Names and values of all field lines, each with its CRLF; undefined: they are malformed. */
function splitFieldLines(block: string): string[] | undefined {
  if (!FIELD_LINES.test(block)) return undefined;
  const rawHeaders: string[] = [];
  for (let at = 0; at < block.length; ) {
    const colon = block.indexOf(':', at);
    const end = block.indexOf('\r', colon);
    rawHeaders.push(block.slice(at, colon), sliceTrimmed(block, colon + 1, end));
    at = end + 2;
  }
  return rawHeaders;
}

export function parseHead(block: string, version: HttpVersion): RequestHead | undefined {
  const rawHeaders = splitFieldLines(block);
  return rawHeaders && new RequestHead(rawHeaders, version);
}

const CACHE_ENTRIES = 512;
const MAX_BLOCK_LENGTH = 4_096;
/** More than the cache has entries: a block must be remembered until it is repeated. */
const MAX_SEEN = 2_048;
const SAMPLES = 24;

/**
 * Most requests repeat the header section of an earlier request byte by byte: the last few hundred are cached, each from its second
 * use on. Sections that are used once, such as those with a token of a short lifetime, neither fill the cache nor outlive their request.
 */
export class HeadCache {
  readonly #version: HttpVersion;
  readonly #recent = new TwoGenerationCache<RequestHead>(CACHE_ENTRIES, MAX_BLOCK_LENGTH);
  readonly #seen = new TwoGenerationCache<true, number>(MAX_SEEN);

  constructor(version: HttpVersion) {
    this.#version = version;
  }

  /** `block`: all field lines, each with its CRLF. Undefined: they are malformed. */
  read(block: string): RequestHead | undefined {
    const known = this.#recent.get(block);
    if (known !== undefined) return known;
    const head = parseHead(block, this.#version);
    if (head === undefined) return undefined;
    const sample = sampleText(block);
    if (this.#seen.get(sample) === true) this.#recent.set(block, head);
    else this.#seen.set(sample, true);
    return head;
  }
}

/** A number that differs between most blocks. If two have the same, one of them is cached at its first use. */
function sampleText(text: string): number {
  const step = Math.trunc(text.length / SAMPLES) || 1;
  let sample = text.length;
  for (let at = text.length - 1; at >= 0; at -= step) sample = Math.imul(sample ^ text.charCodeAt(at), 0x01_00_01_93);
  // V8 represents 30 bits without a heap object.
  return sample >>> 2;
}
