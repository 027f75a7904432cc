import { formatFields } from '../http/raw-headers.ts';
import type { RequestHead } from '../http/request-head.ts';
import { flattenString } from '../lib/flat-string.ts';
import { newTraceparent } from '../observability/trace-context.ts';
import { type Credentials, readCredentials } from './policy/credentials.ts';
import type { ForwardInfo, HeaderRules } from './policy/headers.ts';

/**
 * The header section for the upstream, cached with the fields of a request. For the same caller, peer and host it differs
 * only in the request id and the traceparent.
 */
class UpstreamFields {
  #rules: HeaderRules | undefined;
  /** What it was built for. */
  #info: ForwardInfo | undefined;
  /** The client's; undefined: a new one for each request. */
  #trace: string | undefined;
  #parts: readonly [string, string, string] | undefined;
  /** From the second use on: most header sections are seen only once. */
  #isFlat = false;
  readonly #result = { text: '', trace: '' };

  /** The header section and its traceparent, in an object that is used again for the next request. */
  serialize(
    rules: HeaderRules,
    head: RequestHead,
    info: ForwardInfo,
  ): { readonly text: string; readonly trace: string } {
    const known = this.#info;
    const isCached =
      known !== undefined &&
      this.#rules === rules &&
      known.caller === info.caller &&
      known.forwardAuthorization === info.forwardAuthorization &&
      known.peer === info.peer &&
      known.host === info.host &&
      known.encrypted === info.encrypted &&
      known.isTrustedPeer === info.isTrustedPeer;
    if (!isCached) this.#rebuild(rules, head, info);
    else if (!this.#isFlat) this.#flatten();
    const [before, between, after] = this.#parts ?? NO_PARTS;
    const trace = info.trace ?? this.#trace ?? newTraceparent();
    this.#result.text = before + trace + between + info.requestId + after;
    this.#result.trace = trace;
    return this.#result;
  }

  #flatten(): void {
    const [before, between, after] = this.#parts ?? NO_PARTS;
    this.#parts = [flattenString(before), flattenString(between), flattenString(after)];
    this.#isFlat = true;
  }

  #rebuild(rules: HeaderRules, head: RequestHead, info: ForwardInfo): void {
    const { rawHeaders } = head;
    const { list, trace } = rules.buildRequestHeaders(rawHeaders, head, info);
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
    this.#info = info;
  }
}

const NO_PARTS = ['', '', ''] as const;

/** What the proxy derives from the header section of a request. */
export class DerivedFields {
  readonly credentials: Credentials;
  readonly upstream = new UpstreamFields();

  constructor({ authorization }: RequestHead) {
    this.credentials = readCredentials(authorization);
  }
}

/** Requests with the same header section share it. */
export function getDerivedFields(head: RequestHead): DerivedFields {
  head.derived ??= new DerivedFields(head);
  return head.derived as DerivedFields;
}

/** The index of a field's value. It compares names only, because a client may send one of them as a value. */
function findValueIndex(list: readonly string[], name: string): number {
  let at = 0;
  while (at < list.length && list[at] !== name) at += 2;
  return at + 1;
}
