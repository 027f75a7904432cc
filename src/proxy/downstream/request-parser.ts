import { HOST_PATTERN } from '../../domain/request-target.ts';
import { foldFieldName, foldFieldNames, memoizeByFieldName } from '../../http/fold-field-name.ts';
import { MAX_FIELDS } from '../../listener/listener-options.ts';
import { METHODS_WITH_BODY, type RequestHead } from '../policy/request-head.ts';

/**
 * The requests that the fast path serves (docs/decisions/0015-fast-path.md). The grammar is exact: a request that does not
 * match it falls back to the full path, and is never repaired here.
 */

/** RFC 9112 §3, origin-form of §3.2.1 only; RFC 9110 §9.3, RFC 5789. */
const REQUEST_LINE = /^(?:GET|HEAD|POST|PUT|PATCH|DELETE) \/[\x21\x22\x24-\x7e]* HTTP\/1\.1$/;
const METHODS = ['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD'] as const;
const VERSION_LENGTH = ' HTTP/1.1'.length;
/** RFC 9110 §5.1 and §5.5, without tabs and obs-text; exactly one space; every line ends in CRLF. */
const FIELD_LINES = /^(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\x20-\x7e]+\r\n)+$/;
/** RFC 9110 §8.6: digits only. */
const CONTENT_LENGTH = /^[0-9]{1,15}$/;
/** RFC 9112 §2.2: a bare CR or LF, or a byte that is not printable ASCII. */
const UNSUPPORTED_BYTES = /[^\x20-\x7e\r\n]|(?:^|[^\r])\n|\r(?!\n|$)/;

export const HEAD_END = '\r\n\r\n';

/** Why a request falls back to the full path; counted by reason. */
export type FallbackReason = (typeof FALLBACK_REASONS)[number];
export const FALLBACK_REASONS = [
  'head',
  'body',
  'size',
  'framing',
  'connection',
  'service',
  'refused',
  'upstream',
  'host',
  'disabled',
] as const;

interface RequestLine {
  /** One of the constants below, not a slice of the input: V8 compares identical strings by their address. */
  readonly method: (typeof METHODS)[number];
  readonly target: string;
}

/** The header fields of a request. Depends on their bytes only, so that it can be cached. */
export interface ParsedFields extends RequestHead {
  /** Names and values in their order, as in Node's `rawHeaders`. */
  readonly rawHeaders: readonly string[];
  /** RFC 9112 §9.6: the response is the last one on this connection. */
  readonly closesConnection: boolean;
}

export function parseRequestLine(line: string): RequestLine | undefined {
  if (!REQUEST_LINE.test(line)) return undefined;
  for (const method of METHODS)
    if (line.startsWith(method))
      return { method, target: line.slice(method.length + 1, line.length - VERSION_LENGTH) };
  return undefined;
}

const METHOD_NAMES: ReadonlySet<string> = new Set(METHODS);
const TARGET = /^\/[\x21\x22\x24-\x7e]*$/;

/** The same for HTTP/2, where method and target are separate fields. */
export const isFastPathTarget = (method: string, target: string): boolean =>
  METHOD_NAMES.has(method) && TARGET.test(target);

/** The beginning of a head that cannot become a request of this grammar. */
export const hasUnsupportedBytes = (partialHead: string): boolean => UNSUPPORTED_BYTES.test(partialHead);

/** `block`: all field lines, each with its CRLF. */
export function parseFields(block: string): ParsedFields | FallbackReason {
  if (!FIELD_LINES.test(block)) return 'head';
  const rawHeaders: string[] = [];
  let host: string | undefined;
  let length: string | undefined;
  let authorization: string | undefined;
  let connection: string | undefined;
  let coding: string | undefined;
  for (let at = 0; at < block.length; ) {
    const colon = block.indexOf(':', at);
    const end = block.indexOf('\r', colon);
    const name = block.slice(at, colon);
    const value = block.slice(colon + 2, end);
    at = end + 2;
    // RFC 9110 §5.5: surrounding whitespace is not part of the value. Node's parser removes it.
    if (value.charCodeAt(0) === 0x20 || value.charCodeAt(value.length - 1) === 0x20) return 'head';
    rawHeaders.push(name, value);
    const kind = getFieldKind(name);
    if (kind === 'plain') continue;
    if (kind === 'unsupported') return 'framing';
    if (kind === 'host') {
      if (host !== undefined) return 'head';
      host = value;
    } else if (kind === 'authorization') {
      if (authorization !== undefined) return 'head';
      authorization = value;
    } else if (kind === 'content-length') {
      if (length !== undefined) return 'framing';
      length = value;
    } else if (kind === 'transfer-encoding') {
      if (coding !== undefined) return 'framing';
      coding = value;
    } else {
      if (connection !== undefined) return 'connection';
      connection = value.toLowerCase();
    }
  }
  if (rawHeaders.length > MAX_FIELDS * 2) return 'size';
  if (host === undefined || !HOST_PATTERN.test(host)) return 'head';
  if (length !== undefined && (coding !== undefined || !CONTENT_LENGTH.test(length))) return 'framing';
  if (coding !== undefined && coding.toLowerCase() !== 'chunked') return 'framing';
  if (connection !== undefined && connection !== 'keep-alive' && connection !== 'close') return 'connection';
  const contentLength = length === undefined ? undefined : Number(length);
  const closesConnection = connection === 'close';
  return {
    rawHeaders,
    closesConnection,
    host,
    framing: coding !== undefined ? 'chunked' : (contentLength ?? 0) > 0 ? 'length' : 'none',
    contentLength,
    expectsContinue: false,
    upgrade: undefined,
    connection: closesConnection ? CLOSE_OPTION : undefined,
    authorization: authorization === undefined ? NO_VALUES : [authorization],
    isServiceWorkerScript: false,
  };
}

const CLOSE_OPTION: ReadonlySet<string> = new Set(['close']);
const NO_VALUES: readonly string[] = [];

type FieldKind =
  | 'plain'
  | 'host'
  | 'authorization'
  | 'content-length'
  | 'transfer-encoding'
  | 'connection'
  | 'unsupported';

const PARSED_FIELD_NAMES: ReadonlySet<string> = new Set([
  'host',
  'authorization',
  'content-length',
  'transfer-encoding',
  'connection',
]);
/** RFC 9110 §7.6, §10.1.1, RFC 9112 §7.1.2: fields that change the meaning of the message or of the connection. */
const UNSUPPORTED_FIELD_NAMES = [
  'te',
  'trailer',
  'expect',
  'upgrade',
  'http2-settings',
  'keep-alive',
  // The full path verifies DPoP proofs: each is accepted once, so a request must not be authorized twice.
  'dpop',
  // The full path decides whether a service worker may be registered.
  'service-worker',
] as const;
/** With other spellings of these names and of the parsed ones. */
const LOOK_ALIKES = foldFieldNames([...PARSED_FIELD_NAMES, ...UNSUPPORTED_FIELD_NAMES]);

const getFieldKind = memoizeByFieldName((name: string): FieldKind => {
  const lower = name.toLowerCase();
  if (PARSED_FIELD_NAMES.has(lower)) return lower as FieldKind;
  // Some servers take `Content_Length` for `Content-Length`.
  const folded = foldFieldName(name);
  return LOOK_ALIKES.has(folded) || folded.startsWith('proxy') ? 'unsupported' : 'plain';
});

/** Methods with a body have a length or chunks; the others have neither. */
export const hasExpectedFraming = (method: string, { contentLength, framing }: ParsedFields): boolean =>
  METHODS_WITH_BODY.has(method) === (contentLength !== undefined || framing === 'chunked');

/** RFC 9112 §7.1, without extensions. */
const CHUNK_SIZE = /^[0-9A-Fa-f]{1,6}$/;
const MAX_CHUNK_SIZE_LINE = 8;
const CRLF = Buffer.from('\r\n', 'latin1');

interface ChunkedContent {
  readonly content: Buffer;
  /** Where the body ends in the bytes that were decoded. */
  readonly end: number;
}

/**
 * Decodes a chunked body that begins at `start`. `incomplete`: more of it must arrive. `unusual`: with extensions, trailers
 * or errors, which Node's parser handles on the full path.
 */
export function decodeChunked(bytes: Buffer, start: number): ChunkedContent | 'incomplete' | 'unusual' {
  const parts: Buffer[] = [];
  for (let at = start; ; ) {
    const lineEnd = bytes.subarray(at, at + MAX_CHUNK_SIZE_LINE).indexOf('\r\n', 0, 'latin1');
    if (lineEnd < 0) return bytes.length - at < MAX_CHUNK_SIZE_LINE ? 'incomplete' : 'unusual';
    const line = bytes.toString('latin1', at, at + lineEnd);
    if (!CHUNK_SIZE.test(line)) return 'unusual';
    const size = Number.parseInt(line, 16);
    const data = at + lineEnd + 2;
    if (size === 0) {
      if (bytes.length < data + 2) return 'incomplete';
      if (bytes.compare(CRLF, 0, 2, data, data + 2) !== 0) return 'unusual';
      return { content: parts.length === 1 ? (parts[0] as Buffer) : Buffer.concat(parts), end: data + 2 };
    }
    if (bytes.length < data + size + 2) return 'incomplete';
    if (bytes.compare(CRLF, 0, 2, data + size, data + size + 2) !== 0) return 'unusual';
    parts.push(bytes.subarray(data, data + size));
    at = data + size + 2;
  }
}
