import type { IncomingMessage } from 'node:http';
import { isForwardableMethod } from '../../domain/method.ts';
import { HOST_PATTERN } from '../../domain/request-target.ts';
import { Http2Request } from '../../listener/http2-request.ts';
import type { ProxyRefusal } from './refusals.ts';

/**
 * The head of a request. Heads that an upstream could frame or route differently are refused, although Node's parser accepts
 * them. Read from `rawHeaders`, where repeated fields are not merged.
 */
export interface RequestHead {
  /** As sent; empty only on HTTP/1.0. */
  readonly host: string;
  readonly framing: 'none' | 'length' | 'chunked';
  /** As sent by the client. */
  readonly contentLength: number | undefined;
  readonly expectsContinue: boolean;
  readonly upgrade: string | undefined;
  /** Options of the Connection field, in lower case; these fields are not forwarded (RFC 9110 §7.6.1). */
  readonly connection: ReadonlySet<string> | undefined;
  /** The values of all Authorization fields. */
  readonly authorization: readonly string[];
  /** A browser fetches the script of a service worker (`Service-Worker` header). */
  readonly isServiceWorkerScript: boolean;
}

export type RequestHeadResult =
  | { readonly ok: true; readonly head: RequestHead }
  | { readonly ok: false; readonly refusal: ProxyRefusal };

/** RFC 9110 §9.3: methods whose content has a meaning. */
export const METHODS_WITH_BODY: ReadonlySet<string> = new Set(['POST', 'PUT', 'PATCH']);

const UNSUPPORTED_METHODS = new Set(['TRACE', 'CONNECT', 'QUERY']);
export const isServedMethod = (method: string): boolean => !UNSUPPORTED_METHODS.has(method);
/** Fields that a Connection option must not remove: the request would have another meaning. */
const FORBIDDEN_CONNECTION_OPTIONS = ['host', 'content-length', 'transfer-encoding'] as const;
const NO_VALUES: readonly string[] = [];

const malformed = (detail: string): ProxyRefusal => ({ reason: 'malformed', detail });

type ReadableRequest = Pick<IncomingMessage, 'method' | 'httpVersion' | 'rawHeaders' | 'complete'>;

export function readRequestHead(request: ReadableRequest): RequestHeadResult {
  const { httpVersion } = request;
  // By class: Node's HTTP/1 parser accepts `HTTP/2.0` in a request line.
  const isHttp2 = request instanceof Http2Request;
  const refusal = checkRequestLine(request, isHttp2);
  if (refusal !== undefined) return { ok: false, refusal };
  const fields = scanFields(request.rawHeaders);
  if ('reason' in fields) return { ok: false, refusal: fields };
  const problem = checkFields(fields, httpVersion, isHttp2);
  if (problem !== undefined) return { ok: false, refusal: problem };
  const { host, length, transferCoding, expect, upgrade, connection, authorization } = fields;
  const contentLength = length === undefined ? undefined : Number(length);
  // RFC 9113 §8.1: over HTTP/2 a body needs no length; it ends with the stream.
  const isLengthUnknown =
    transferCoding !== undefined || (isHttp2 && length === undefined && !request.complete);
  return {
    ok: true,
    head: {
      host: host ?? '',
      framing: isLengthUnknown ? 'chunked' : (contentLength ?? 0) > 0 ? 'length' : 'none',
      contentLength,
      expectsContinue: expect !== undefined && httpVersion !== '1.0',
      upgrade,
      connection,
      authorization,
      isServiceWorkerScript: fields.isServiceWorkerScript,
    },
  };
}

function checkRequestLine(
  { method = '', httpVersion }: ReadableRequest,
  isHttp2: boolean,
): ProxyRefusal | undefined {
  if (httpVersion !== '1.1' && httpVersion !== '1.0' && !isHttp2)
    return malformed('unsupported HTTP version');
  // Over HTTP/2 any token is possible; Node's HTTP/1 parser accepts a list of methods.
  if (!isForwardableMethod(method))
    return malformed('the method must consist of at most 32 upper-case letters and dashes');
  return isServedMethod(method) ? undefined : { reason: 'method_not_allowed' };
}

interface ScannedFields {
  host: string | undefined;
  length: string | undefined;
  transferCoding: string | undefined;
  expect: string | undefined;
  upgrade: string | undefined;
  connection: Set<string> | undefined;
  authorization: readonly string[];
  isServiceWorkerScript: boolean;
}

function scanFields(rawHeaders: readonly string[]): ScannedFields | ProxyRefusal {
  const fields: ScannedFields = {
    host: undefined,
    length: undefined,
    transferCoding: undefined,
    expect: undefined,
    upgrade: undefined,
    connection: undefined,
    authorization: NO_VALUES,
    isServiceWorkerScript: false,
  };
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = rawHeaders[at] ?? '';
    const value = rawHeaders[at + 1] ?? '';
    // Most names have other lengths, and need not be lower-cased.
    switch (name.length) {
      case 4:
        if (name.toLowerCase() !== 'host') break;
        if (fields.host !== undefined) return malformed('more than one Host');
        fields.host = value;
        break;
      case 6:
        if (name.toLowerCase() !== 'expect') break;
        if (fields.expect !== undefined) return { reason: 'expectation_failed' };
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
      case 13:
        if (name.toLowerCase() === 'authorization') fields.authorization = [...fields.authorization, value];
        break;
      case 14:
        if (name.toLowerCase() === 'service-worker') fields.isServiceWorkerScript = true;
        if (name.toLowerCase() !== 'content-length') break;
        if (fields.length !== undefined) return malformed('more than one Content-Length');
        fields.length = value;
        break;
      case 17:
        if (name.toLowerCase() !== 'transfer-encoding') break;
        if (fields.transferCoding !== undefined) return malformed('more than one Transfer-Encoding');
        fields.transferCoding = value;
        break;
      default:
    }
  }
  return fields;
}

function checkFields(
  { host, length, transferCoding, expect, upgrade, connection }: ScannedFields,
  httpVersion: string,
  isHttp2: boolean,
): ProxyRefusal | undefined {
  if (host === undefined ? httpVersion !== '1.0' : !HOST_PATTERN.test(host))
    return malformed('missing or invalid Host');
  // RFC 9113 §8.2.2.
  if (isHttp2 && (transferCoding !== undefined || connection !== undefined || upgrade !== undefined))
    return malformed('a connection-specific header field');
  if (transferCoding !== undefined) {
    // RFC 9112 §6.1: the framing is ambiguous with both, and with a transfer coding on HTTP/1.0.
    if (length !== undefined) return malformed('both Content-Length and Transfer-Encoding');
    if (httpVersion === '1.0') return malformed('Transfer-Encoding on HTTP/1.0');
    if (transferCoding.toLowerCase() !== 'chunked') return { reason: 'transfer_coding_unsupported' };
  }
  if (length !== undefined && !/^[0-9]{1,15}$/.test(length)) return malformed('an invalid Content-Length');
  if (connection !== undefined)
    for (const name of FORBIDDEN_CONNECTION_OPTIONS)
      if (connection.has(name)) return malformed(`the Connection field names ${name}`);
  return expect !== undefined && expect.toLowerCase() !== '100-continue'
    ? { reason: 'expectation_failed' }
    : undefined;
}
