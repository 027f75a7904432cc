import { HOST_PATTERN, isForwardableMethod } from '../domain/request-target.ts';
import { type GrpcCall, readGrpcCall } from './grpc.ts';

export type HttpVersion = '1.0' | '1.1' | '2';

/** Header fields by their names in lower case; `set-cookie` does not occur in requests. */
export type HeaderFields = Readonly<Record<string, string | undefined>>;

/** Why no handler sees a request. */
export type HeadRefusal =
  | { readonly reason: 'malformed'; readonly detail: string }
  | { readonly reason: 'method_not_allowed' }
  | { readonly reason: 'transfer_coding_unsupported' }
  | { readonly reason: 'expectation_failed' }
  | { readonly reason: 'target_too_long' }
  | { readonly reason: 'head_too_large' };

/**
 * The header section of a request. It depends on nothing but its bytes and the HTTP version, so that requests with the same
 * section share it. Heads that an upstream could frame or route differently have a `refusal`.
 */
export class RequestHead {
  /** Names and values in their order; repeated fields are not merged. */
  readonly rawHeaders: readonly string[];
  /** It is undefined if the fields are acceptable. */
  readonly refusal: HeadRefusal | undefined;
  /** As sent; empty only on HTTP/1.0. */
  readonly host: string;
  readonly framing: 'none' | 'length' | 'chunked';
  /** As sent by the client. */
  readonly contentLength: number | undefined;
  readonly expectsContinue: boolean;
  /** RFC 9110 §10.1.4: the client accepts trailers (`TE: trailers`). */
  readonly acceptsTrailers: boolean;
  /** By the content type; undefined: it is no call of gRPC. */
  readonly grpc: GrpcCall | undefined;
  readonly upgrade: string | undefined;
  /** Options of the Connection field, in lower case; these fields are not forwarded (RFC 9110 §7.6.1). */
  readonly connection: ReadonlySet<string> | undefined;
  /** The values of all Authorization fields. */
  readonly authorization: readonly string[];
  /** A browser fetches the script of a service worker (`Service-Worker` header). */
  readonly isServiceWorkerScript: boolean;
  /** For what handlers derive from the fields, so that it is derived once. */
  derived: object | undefined = undefined;
  #headers: HeaderFields | undefined = undefined;

  constructor(rawHeaders: readonly string[], version: HttpVersion, refusal?: HeadRefusal) {
    const fields = scanFields(rawHeaders);
    this.rawHeaders = rawHeaders;
    this.refusal = refusal ?? fields.refusal ?? checkFields(fields, rawHeaders.length / 2, version);
    const { host, length, transferCoding, expect, upgrade, connection, authorization } = fields;
    this.host = host ?? '';
    this.contentLength = length === undefined ? undefined : Number(length);
    this.framing = transferCoding !== undefined ? 'chunked' : (this.contentLength ?? 0) > 0 ? 'length' : 'none';
    this.expectsContinue = expect !== undefined && version !== '1.0';
    this.acceptsTrailers = fields.acceptsTrailers;
    this.grpc = readGrpcCall(fields.contentType ?? '', fields.grpcTimeout, version === '2');
    this.upgrade = upgrade;
    this.connection = connection;
    this.authorization = authorization ?? NO_VALUES;
    this.isServiceWorkerScript = fields.isServiceWorkerScript;
  }

  /** RFC 9112 §9.3: the connection is closed after the response. */
  closesConnection(version: HttpVersion): boolean {
    const { connection } = this;
    if (connection?.has('close') === true) return true;
    return version === '1.0' && connection?.has('keep-alive') !== true;
  }

  get headers(): HeaderFields {
    return (this.#headers ??= combineFields(this.rawHeaders));
  }
}

/** RFC 9110 §9.3: methods whose content has a meaning. */
export const METHODS_WITH_BODY: ReadonlySet<string> = new Set(['POST', 'PUT', 'PATCH']);

const UNSUPPORTED_METHODS = new Set(['TRACE', 'CONNECT', 'QUERY']);
export const isServedMethod = (method: string): boolean => !UNSUPPORTED_METHODS.has(method);
/** Fields that a Connection option must not remove: the request would have another meaning. */
const FORBIDDEN_CONNECTION_OPTIONS = ['host', 'content-length', 'transfer-encoding'] as const;
/** Header fields of a request. */
export const MAX_FIELDS = 100;
const NO_VALUES: readonly string[] = [];
const ACCEPTED_TRAILERS = /(?:^|,)[\t ]*trailers[\t ]*(?:,|$)/i;

const malformed = (detail: string): HeadRefusal => ({ reason: 'malformed', detail });

export function checkMethod(method: string): HeadRefusal | undefined {
  if (!isForwardableMethod(method))
    return malformed('the method must consist of at most 32 upper-case letters and dashes');
  return isServedMethod(method) ? undefined : { reason: 'method_not_allowed' };
}

class ScannedFields {
  refusal: HeadRefusal | undefined = undefined;
  host: string | undefined = undefined;
  length: string | undefined = undefined;
  transferCoding: string | undefined = undefined;
  expect: string | undefined = undefined;
  upgrade: string | undefined = undefined;
  connection: Set<string> | undefined = undefined;
  authorization: string[] | undefined = undefined;
  isServiceWorkerScript = false;
  acceptsTrailers = false;
  contentType: string | undefined = undefined;
  /** Empty if it is repeated. */
  grpcTimeout: string | undefined = undefined;
}

function scanFields(rawHeaders: readonly string[]): ScannedFields {
  const fields = new ScannedFields();
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = rawHeaders[at] ?? '';
    const value = rawHeaders[at + 1] ?? '';
    // Most names have other lengths, and need not be lower-cased.
    switch (name.length) {
      case 2:
        if (name.toLowerCase() === 'te') fields.acceptsTrailers ||= ACCEPTED_TRAILERS.test(value);
        break;
      case 4:
        if (name.toLowerCase() !== 'host') break;
        if (fields.host !== undefined) fields.refusal ??= malformed('more than one Host');
        fields.host = value;
        break;
      case 6:
        if (name.toLowerCase() !== 'expect') break;
        if (fields.expect !== undefined) fields.refusal ??= { reason: 'expectation_failed' };
        fields.expect = value;
        break;
      case 7:
        if (name.toLowerCase() !== 'upgrade') break;
        fields.upgrade = fields.upgrade === undefined ? value : `${fields.upgrade},${value}`;
        break;
      case 10:
        if (name.toLowerCase() !== 'connection') break;
        fields.connection ??= new Set();
        for (const option of value.split(',')) fields.connection.add(option.trim().toLowerCase());
        break;
      case 12: {
        const lower = name.toLowerCase();
        if (lower === 'content-type') fields.contentType ??= value;
        else if (lower === 'grpc-timeout') fields.grpcTimeout = fields.grpcTimeout === undefined ? value : '';
        break;
      }
      case 13:
        if (name.toLowerCase() === 'authorization') (fields.authorization ??= []).push(value);
        break;
      case 14:
        if (name.toLowerCase() === 'service-worker') fields.isServiceWorkerScript = true;
        if (name.toLowerCase() !== 'content-length') break;
        if (fields.length !== undefined) fields.refusal ??= malformed('more than one Content-Length');
        fields.length = value;
        break;
      case 17:
        if (name.toLowerCase() !== 'transfer-encoding') break;
        if (fields.transferCoding !== undefined) fields.refusal ??= malformed('more than one Transfer-Encoding');
        fields.transferCoding = value;
        break;
      default:
    }
  }
  return fields;
}

function checkFields(fields: ScannedFields, count: number, version: HttpVersion): HeadRefusal | undefined {
  const { host, length, transferCoding, expect, upgrade, connection } = fields;
  if (count > MAX_FIELDS) return { reason: 'head_too_large' };
  if (host === undefined ? version !== '1.0' : !HOST_PATTERN.test(host)) return malformed('missing or invalid Host');
  // RFC 9113 §8.2.2.
  if (version === '2' && (transferCoding !== undefined || connection !== undefined || upgrade !== undefined))
    return malformed('a connection-specific header field');
  if (transferCoding !== undefined) {
    // RFC 9112 §6.1: the framing is ambiguous with both, and with a transfer coding on HTTP/1.0.
    if (length !== undefined) return malformed('both Content-Length and Transfer-Encoding');
    if (version === '1.0') return malformed('Transfer-Encoding on HTTP/1.0');
    if (transferCoding.toLowerCase() !== 'chunked')
      return /chunked[\t ]*,/i.test(transferCoding)
        ? malformed('a transfer coding after chunked')
        : { reason: 'transfer_coding_unsupported' };
  }
  if (length !== undefined && !/^[0-9]{1,15}$/.test(length)) return malformed('an invalid Content-Length');
  if (connection !== undefined)
    for (const name of FORBIDDEN_CONNECTION_OPTIONS)
      if (connection.has(name)) return malformed(`the Connection field names ${name}`);
  return expect !== undefined && expect.toLowerCase() !== '100-continue' ? { reason: 'expectation_failed' } : undefined;
}

/** If one of these fields is repeated, its first value counts. */
const SINGLE_FIELDS: ReadonlySet<string> = new Set([
  'authorization',
  'content-length',
  'content-type',
  'host',
  'proxy-authorization',
  'referer',
  'user-agent',
]);

function combineFields(rawHeaders: readonly string[]): HeaderFields {
  const fields: Record<string, string | undefined> = Object.create(null) as Record<string, string>;
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    const name = (rawHeaders[at] ?? '').toLowerCase();
    const value = rawHeaders[at + 1] ?? '';
    const known = fields[name];
    if (known === undefined) fields[name] = value;
    else if (!SINGLE_FIELDS.has(name)) fields[name] = `${known}${name === 'cookie' ? '; ' : ', '}${value}`;
  }
  return fields;
}
