import type { ForwardedHead, ResponseFields } from '../../http/downstream.ts';
import { sliceTrimmed } from '../../http/fold-field-name.ts';
import { isEventStream } from '../policy/upstream-rewriter.ts';

/** What of a response's header fields is forwarded, kept with the head: upstreams often send the same head again. */
export interface ClientFields extends ResponseFields {
  /** The header rules that made it. */
  readonly by: object;
}

/** The head of an upstream's response, parsed strictly (docs/decisions/0048-one-pipeline.md): ambiguous framing is an error. */
export interface ResponseHead extends ForwardedHead {
  /** Names and values in their order. */
  readonly rawHeaders: readonly string[];
  /**
   * Only the close of a TLS connection ends it. Node does not report whether a close_notify was received, so that a
   * truncated response cannot be distinguished from a complete one (RFC 9112 §9.8).
   */
  readonly isEndUncertain: boolean;
  /** The connection may be used again afterwards. */
  readonly isReusable: boolean;
  /** Seconds that the upstream keeps an idle connection open, where it says so. */
  readonly keepAlive: number | undefined;
  readonly isEventStream: boolean;
  readonly hasLocation: boolean;
  clientFields: ClientFields | undefined;
}

/** RFC 9112 §4. The reason phrase is ignored. */
const STATUS_LINE = /^HTTP\/1\.([01]) ([1-9][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?$/;
/** RFC 9110 §5.5: no control character but the tab; no line folding (RFC 9112 §5.2). */
const FIELD_LINES = /^(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n)*$/;
const CONTENT_LENGTH = /^[0-9]{1,15}$/;

/** `text`: the head without the empty line that ends it. Returns what is wrong with it where it cannot be accepted. */
export function parseResponseHead(text: string, isHead: boolean, isTls = false): ResponseHead | string {
  const lineEnd = text.indexOf('\r\n');
  const line = STATUS_LINE.exec(lineEnd < 0 ? text : text.slice(0, lineEnd));
  if (line === null) return 'a malformed status line';
  const block = lineEnd < 0 ? '' : `${text.slice(lineEnd + 2)}\r\n`;
  if (!FIELD_LINES.test(block)) return 'malformed header fields';
  const rawHeaders: string[] = [];
  let length: string | undefined;
  let transferCoding: string | undefined;
  let closesConnection = line[1] === '0';
  let keepAlive: number | undefined;
  let hasDate = false;
  let hasLocation = false;
  for (let at = 0; at < block.length; ) {
    const colon = block.indexOf(':', at);
    const end = block.indexOf('\r', colon);
    const name = block.slice(at, colon);
    const value = sliceTrimmed(block, colon + 1, end);
    at = end + 2;
    rawHeaders.push(name, value);
    switch (name.length) {
      case 4:
        hasDate ||= equalsName(name, 'date');
        break;
      case 8:
        hasLocation ||= equalsName(name, 'location');
        break;
      case 10:
        if (equalsName(name, 'connection')) closesConnection ||= /(?:^|,)\s*(?:close|upgrade)\s*(?:,|$)/i.test(value);
        else if (equalsName(name, 'keep-alive')) keepAlive = parseKeepAliveTimeout(value);
        break;
      case 14:
        if (!equalsName(name, 'content-length')) break;
        if (length !== undefined) return 'more than one Content-Length';
        length = value;
        break;
      case 17:
        if (!equalsName(name, 'transfer-encoding')) break;
        if (transferCoding !== undefined) return 'more than one Transfer-Encoding';
        transferCoding = value;
        break;
      default:
    }
  }
  if (length !== undefined && !CONTENT_LENGTH.test(length)) return 'a malformed Content-Length';
  if (transferCoding !== undefined) {
    // RFC 9112 §6.1, §6.3: the framing is ambiguous with both, with another coding, and with a coding on HTTP/1.0.
    if (length !== undefined) return 'both Content-Length and Transfer-Encoding';
    if (line[1] === '0' || transferCoding.toLowerCase() !== 'chunked') return 'an unsupported transfer coding';
  }
  const status = Number(line[2]);
  const hasNoBody = isHead || status < 200 || status === 204 || status === 304;
  const framing = hasNoBody
    ? 'none'
    : transferCoding !== undefined
      ? 'chunked'
      : length !== undefined
        ? 'length'
        : 'close';
  return {
    status,
    rawHeaders,
    framing,
    isEndUncertain: framing === 'close' && isTls,
    length: framing === 'length' ? Number(length) : 0,
    // A server that responds to HEAD with a body would respond to the next request with it.
    isReusable: !closesConnection && !isHead && framing !== 'close',
    keepAlive,
    isEventStream: isEventStream(rawHeaders),
    hasDate,
    hasLocation,
    clientFields: undefined,
  };
}

const equalsName = (name: string, wanted: string): boolean => name === wanted || name.toLowerCase() === wanted;

function parseKeepAliveTimeout(value: string): number | undefined {
  const [, seconds] = /(?:^|,)\s*timeout=([0-9]{1,6})\s*(?:,|$)/i.exec(value) ?? [];
  return seconds === undefined ? undefined : Number(seconds);
}
