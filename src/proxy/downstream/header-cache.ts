import { flattenString } from '../../lib/flat-string.ts';
import { TwoGenerationCache } from '../../lib/two-generation-cache.ts';
import { newTraceparent } from '../../observability/trace-context.ts';
import type { Caller } from '../policy/authorize.ts';
import { type Credentials, readCredentials } from '../policy/credentials.ts';
import type { ForwardInfo, HeaderRules } from '../policy/headers.ts';
import { type FallbackReason, type ParsedFields, parseFields } from './request-parser.ts';
import { formatFields } from './response-text.ts';

/**
 * The header section for the upstream, cached with the fields of a request. For the same caller and the same peer it differs
 * only in the request id and the traceparent.
 */
class UpstreamFieldsCache {
  #rules: HeaderRules | undefined;
  #caller: Caller | undefined;
  #forwardAuthorization = false;
  #peer = '';
  #encrypted = false;
  #trustedPeer = false;
  /** The client's; undefined: a new one for each request. */
  #trace: string | undefined;
  #parts: readonly [string, string, string] | undefined;
  /** From the second use on: most header sections are seen only once. */
  #isFlat = false;
  readonly #result = { text: '', trace: '' };

  /** The header section and its traceparent, in an object that is used again for the next request. */
  serialize(
    rules: HeaderRules,
    fields: CachedFields,
    info: ForwardInfo,
  ): { readonly text: string; readonly trace: string } {
    const { requestId } = info;
    const isCached =
      this.#parts !== undefined &&
      this.#rules === rules &&
      this.#caller === info.caller &&
      this.#forwardAuthorization === info.forwardAuthorization &&
      this.#peer === info.peer &&
      this.#encrypted === info.encrypted &&
      this.#trustedPeer === info.isTrustedPeer;
    if (!isCached) this.#rebuild(rules, fields, info);
    else if (!this.#isFlat) this.#flatten();
    const [before, between, after] = this.#parts ?? NO_PARTS;
    const trace = info.trace ?? this.#trace ?? newTraceparent();
    this.#result.text = before + trace + between + requestId + after;
    this.#result.trace = trace;
    return this.#result;
  }

  #flatten(): void {
    const [before, between, after] = this.#parts ?? NO_PARTS;
    this.#parts = [flattenString(before), flattenString(between), flattenString(after)];
    this.#isFlat = true;
  }

  #rebuild(rules: HeaderRules, fields: CachedFields, info: ForwardInfo): void {
    const { rawHeaders } = fields;
    const { list, trace } = rules.buildRequestHeaders(rawHeaders, fields, info);
    const [traceAt, idAt] = [findValueIndex(list, 'traceparent'), findValueIndex(list, 'X-Request-Id')];
    if (list[traceAt] !== trace || list[idAt] !== info.requestId || traceAt > idAt)
      throw new Error('the header rules must write one traceparent and then one request id');
    const name = (at: number): string => `${list[at - 1]}: `;
    this.#parts = [
      formatFields(list, 0, traceAt - 1) + name(traceAt),
      `\r\n${formatFields(list, traceAt + 1, idAt - 1)}${name(idAt)}`,
      `\r\n${formatFields(list, idAt + 1)}`,
    ];
    this.#isFlat = false;
    this.#trace = rawHeaders.includes(trace) ? trace : undefined;
    this.#rules = rules;
    this.#caller = info.caller;
    this.#forwardAuthorization = info.forwardAuthorization;
    this.#peer = info.peer;
    this.#encrypted = info.encrypted;
    this.#trustedPeer = info.isTrustedPeer;
  }
}

const NO_PARTS = ['', '', ''] as const;

/** The parsed fields of a request, with what was derived from them. */
export interface CachedFields extends ParsedFields {
  readonly credentials: Credentials;
  readonly upstreamFields: UpstreamFieldsCache;
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
export class HeaderCache {
  readonly #recent = new TwoGenerationCache<CachedFields>(CACHE_ENTRIES, MAX_BLOCK_LENGTH);
  readonly #seen = new TwoGenerationCache<true, number>(MAX_SEEN);

  read(block: string): CachedFields | FallbackReason {
    const known = this.#recent.get(block);
    if (known !== undefined) return known;
    const parsed = parseFields(block);
    if (typeof parsed === 'string') return parsed;
    const fields = {
      ...parsed,
      credentials: readCredentials(parsed.authorization),
      upstreamFields: new UpstreamFieldsCache(),
    };
    const sample = sampleText(block);
    if (this.#seen.get(sample) === true) this.#recent.set(block, fields);
    else this.#seen.set(sample, true);
    return fields;
  }
}

/** A number that differs between most blocks. If two have the same, one of them is cached at its first use. */
function sampleText(text: string): number {
  const step = Math.trunc(text.length / SAMPLES) || 1;
  let sample = text.length;
  for (let at = text.length - 1; at >= 0; at -= step)
    sample = Math.imul(sample ^ text.charCodeAt(at), 0x01_00_01_93);
  // V8 represents 30 bits without a heap object.
  return sample >>> 2;
}

/** The index of a field's value. It compares names only, because a client may send one of them as a value. */
function findValueIndex(list: readonly string[], name: string): number {
  let at = 0;
  while (at < list.length && list[at] !== name) at += 2;
  return at + 1;
}
