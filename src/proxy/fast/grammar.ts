import { foldedName, foldedNames } from '../../http/folded-name.ts';
import { MAX_FIELDS } from '../../tls/listener-options.ts';
import { EXPECTS_BODY, HOST, type RequestHead } from '../request-head.ts';

/**
 * The requests that the fast lane recognises, to the letter (docs/decisions/0015-fast-lane.md). There is one way to
 * match each of these, and no repair: what does not fit is somebody else's to judge.
 */

/** RFC 9112 §3, origin-form of §3.2.1 only; RFC 9110 §9.3, RFC 5789. */
const REQUEST_LINE = /^(?:GET|HEAD|POST|PUT|PATCH|DELETE) \/[\x21\x22\x24-\x7e]* HTTP\/1\.1$/;
const METHODS = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD'] as const;
const VERSION_LENGTH = ' HTTP/1.1'.length;
/** RFC 9110 §5.1 and §5.5, without tabs and obs-text; exactly one space; every line ends in CRLF. */
const FIELDS = /^(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\x20-\x7e]+\r\n)+$/;
/** RFC 9112 §6.2, §8.6 of RFC 9110: digits and nothing else. */
const LENGTH = /^[0-9]{1,15}$/;
/** RFC 9112 §2.2: a CR or LF that stands alone, or anything that is not printable ASCII. */
const ODD_BYTES = /[^\x20-\x7e\r\n]|(?:^|[^\r])\n|\r(?!\n|$)/;

export const HEAD_END = '\r\n\r\n';

/** Why a request is not the fast lane's; each is counted. */
export type HandOver =
  | 'head'
  | 'size'
  | 'framing'
  | 'connection'
  | 'service'
  | 'refused'
  | 'rule'
  | 'upstream'
  | 'host'
  | 'off';

export interface RequestLine {
  /** Not cut from what was sent: a text that is the same each time is found in tables without a look at its letters. */
  readonly method: (typeof METHODS)[number];
  readonly target: string;
}

/** What the fields of a request say. A function of their bytes alone. */
export interface FieldBlock extends RequestHead {
  /** Names and values in their order, as node's parser gives them. */
  readonly rawHeaders: readonly string[];
  /** RFC 9112 §9.6: the answer is the last on this connection. */
  readonly close: boolean;
}

export function readRequestLine(line: string): RequestLine | undefined {
  if (!REQUEST_LINE.test(line)) return undefined;
  for (const method of METHODS)
    if (line.startsWith(method))
      return { method, target: line.slice(method.length + 1, line.length - VERSION_LENGTH) };
  return undefined;
}

/** A beginning of a head of which nobody could make a request that is recognised. */
export const isHopeless = (begun: string): boolean => ODD_BYTES.test(begun);

/** `block`: all fields, each with its CRLF. */
export function readFields(block: string): FieldBlock | HandOver {
  if (!FIELDS.test(block)) return 'head';
  const rawHeaders: string[] = [];
  let host: string | undefined;
  let length: string | undefined;
  let authorization: string | undefined;
  let connection: string | undefined;
  for (let at = 0; at < block.length; ) {
    const colon = block.indexOf(':', at);
    const end = block.indexOf('\r', colon);
    const name = block.slice(at, colon);
    const value = block.slice(colon + 2, end);
    at = end + 2;
    // Spaces around a value are no part of it (RFC 9110 §5.5): whoever sends them is read by a parser that knows.
    if (value.charCodeAt(0) === 0x20 || value.charCodeAt(value.length - 1) === 0x20) return 'head';
    rawHeaders.push(name, value);
    const kind = kindOf(name);
    if (kind === 'plain') continue;
    if (kind === 'odd') return 'framing';
    if (kind === 'host') {
      if (host !== undefined) return 'head';
      host = value;
    } else if (kind === 'authorization') {
      if (authorization !== undefined) return 'head';
      authorization = value;
    } else if (kind === 'content-length') {
      if (length !== undefined) return 'framing';
      length = value;
    } else {
      if (connection !== undefined) return 'connection';
      connection = value.toLowerCase();
    }
  }
  if (rawHeaders.length > MAX_FIELDS * 2) return 'size';
  if (host === undefined || !HOST.test(host)) return 'head';
  if (length !== undefined && !LENGTH.test(length)) return 'framing';
  if (connection !== undefined && connection !== 'keep-alive' && connection !== 'close') return 'connection';
  const contentLength = length === undefined ? undefined : Number(length);
  const close = connection === 'close';
  return {
    rawHeaders,
    close,
    host,
    framing: contentLength === undefined || contentLength === 0 ? 'none' : 'length',
    contentLength,
    expectsContinue: false,
    upgrade: undefined,
    connection: close ? CLOSE : undefined,
    authorization: authorization === undefined ? NONE : [authorization],
    serviceWorker: false,
  };
}

const CLOSE: ReadonlySet<string> = new Set(['close']);
const NONE: readonly string[] = [];

type FieldKind = 'plain' | 'host' | 'authorization' | 'content-length' | 'connection' | 'odd';

const READ: ReadonlySet<string> = new Set(['host', 'authorization', 'content-length', 'connection']);
/** RFC 9110 §7.6, §10.1.1, RFC 9112 §6.1, §7.1.2: what changes the meaning of a message or of the connection. */
const ODD = [
  'transfer-encoding',
  'te',
  'trailer',
  'expect',
  'upgrade',
  'http2-settings',
  'keep-alive',
  // The full path decides whether a service worker may be registered.
  'service-worker',
] as const;
/** These, and other spellings of the names that are read. */
const LOOK_ALIKES = foldedNames([...READ, ...ODD]);

const kinds = new Map<string, FieldKind>();
const MOST_KINDS = 1_000;

/** Names repeat endlessly; the memory has a bound, so that invented ones cannot make it grow. */
function kindOf(name: string): FieldKind {
  const known = kinds.get(name);
  if (known !== undefined) return known;
  const kind = classify(name.toLowerCase());
  if (kinds.size < MOST_KINDS && name.length <= 64) kinds.set(name, kind);
  return kind;
}

function classify(name: string): FieldKind {
  if (READ.has(name)) return name as FieldKind;
  // To some servers `Content_Length` is `Content-Length`.
  const folded = foldedName(name);
  return LOOK_ALIKES.has(folded) || folded.startsWith('proxy') ? 'odd' : 'plain';
}

/** A length where there must be one, and none where nobody expects one. */
export const isFramedAsUsual = (method: string, { contentLength }: FieldBlock): boolean =>
  EXPECTS_BODY.has(method) === (contentLength !== undefined);
