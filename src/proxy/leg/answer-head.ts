import { isEventStream } from '../way-out.ts';

/**
 * The head of an upstream's answer, read strictly (docs/decisions/0015-fast-lane.md): what could be framed in two ways is
 * no answer.
 */
export interface AnswerHead {
  readonly status: number;
  /** Names and values in their order. */
  readonly rawHeaders: readonly string[];
  readonly framing: 'none' | 'length' | 'chunked' | 'close';
  /** With framing `length`. */
  readonly length: number;
  /** The connection may be used again afterwards. */
  readonly reusable: boolean;
  /** A stream of events: it may outlive the token it was asked for with. */
  readonly events: boolean;
  /** It says when it was made; it leads to another place. */
  readonly dated: boolean;
  readonly leads: boolean;
  /** What was made of its fields, from behind the id on, and by which rules: an upstream says the same again and again. */
  written: string;
  writtenBy: object | undefined;
  /** The same as a list, in the full lane. */
  listed: readonly string[];
  listedBy: object | undefined;
  /** Seconds it says an idle connection stays open. */
  readonly keepAlive: number | undefined;
}

/** RFC 9112 §4. The reason is for nobody. */
const STATUS_LINE = /^HTTP\/1\.([01]) ([1-9][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?$/;
/** RFC 9110 §5.5: no control character but the tab; no line folding (RFC 9112 §5.2). */
const FIELDS = /^(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n)*$/;
const LENGTH = /^[0-9]{1,15}$/;
export const TRAILER = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*$/;

/** What is wrong with an answer. */
export type AnswerFault = string;

/** `text`: the head without the empty line that ends it. */
export function readAnswerHead(text: string, toHead: boolean): AnswerHead | AnswerFault {
  const lineEnd = text.indexOf('\r\n');
  const line = STATUS_LINE.exec(lineEnd < 0 ? text : text.slice(0, lineEnd));
  if (line === null) return 'no clear status line';
  const block = lineEnd < 0 ? '' : `${text.slice(lineEnd + 2)}\r\n`;
  if (!FIELDS.test(block)) return 'no clear header fields';
  const rawHeaders: string[] = [];
  let length: string | undefined;
  let coding: string | undefined;
  let close = line[1] === '0';
  let keepAlive: number | undefined;
  let dated = false;
  let leads = false;
  for (let at = 0; at < block.length; ) {
    const colon = block.indexOf(':', at);
    const end = block.indexOf('\r', colon);
    const name = block.slice(at, colon);
    const value = valueIn(block, colon + 1, end);
    at = end + 2;
    rawHeaders.push(name, value);
    switch (name.length) {
      case 4:
        dated ||= isNamed(name, 'date');
        break;
      case 8:
        leads ||= isNamed(name, 'location');
        break;
      case 10:
        if (isNamed(name, 'connection')) close ||= /(?:^|,)\s*(?:close|upgrade)\s*(?:,|$)/i.test(value);
        else if (isNamed(name, 'keep-alive')) keepAlive = secondsIn(value);
        break;
      case 14:
        if (!isNamed(name, 'content-length')) break;
        if (length !== undefined) return 'more than one Content-Length';
        length = value;
        break;
      case 17:
        if (!isNamed(name, 'transfer-encoding')) break;
        if (coding !== undefined) return 'more than one Transfer-Encoding';
        coding = value;
        break;
      default:
    }
  }
  if (length !== undefined && !LENGTH.test(length)) return 'no clear Content-Length';
  if (coding !== undefined) {
    // RFC 9112 §6.1, §6.3: both, another coding, or a coding on HTTP/1.0 cannot be trusted to be framed as we think.
    if (length !== undefined) return 'both Content-Length and Transfer-Encoding';
    if (line[1] === '0' || coding.toLowerCase() !== 'chunked') return 'a transfer coding that is not served';
  }
  const status = Number(line[2]);
  const bodiless = toHead || status < 200 || status === 204 || status === 304;
  const framing = bodiless
    ? 'none'
    : coding !== undefined
      ? 'chunked'
      : length !== undefined
        ? 'length'
        : 'close';
  return {
    status,
    rawHeaders,
    framing,
    length: framing === 'length' ? Number(length) : 0,
    // A server that answers HEAD with a body would answer the next request with it.
    reusable: !close && !toHead && framing !== 'close',
    events: isEventStream(rawHeaders),
    keepAlive,
    dated,
    leads,
    written: '',
    writtenBy: undefined,
    listed: [],
    listedBy: undefined,
  };
}

/** RFC 9110 §5.5: less the spaces and tabs around it, and nothing else; a byte of UTF-8 can look like another kind of space. */
function valueIn(block: string, from: number, end: number): string {
  let [first, last] = [from, end];
  while (first < last && isBlank(block.charCodeAt(first))) first += 1;
  while (last > first && isBlank(block.charCodeAt(last - 1))) last -= 1;
  return block.slice(first, last);
}

const isBlank = (code: number): boolean => code === 0x20 || code === 0x09;

const isNamed = (name: string, wanted: string): boolean => name === wanted || name.toLowerCase() === wanted;

function secondsIn(value: string): number | undefined {
  const [, seconds] = /(?:^|,)\s*timeout=([0-9]{1,6})\s*(?:,|$)/i.exec(value) ?? [];
  return seconds === undefined ? undefined : Number(seconds);
}
