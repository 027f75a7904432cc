import type { IncomingMessage } from 'node:http';
import { isMethod } from '../domain/method.ts';
import { Http2Request } from '../tls/http2-request.ts';
import type { ProxyRefusal } from './refuse.ts';

/**
 * What a request's head says about itself, and the heads that are refused although node's parser lets them pass:
 * whatever an upstream could frame or route differently. Read from `rawHeaders`, where nothing was merged.
 */
export interface RequestHead {
  /** As sent; empty only on HTTP/1.0. */
  readonly host: string;
  readonly framing: 'none' | 'length' | 'chunked';
  /** Defined when the client named a length. */
  readonly contentLength: number | undefined;
  readonly expectsContinue: boolean;
  readonly upgrade: string | undefined;
  /** Names in the Connection field, lower case: they end here (RFC 9110 §7.6.1). */
  readonly connection: ReadonlySet<string> | undefined;
  /** The values of all Authorization fields. */
  readonly authorization: readonly string[];
  /** A browser fetches the script of a service worker (Service Workers, `Service-Worker` header). */
  readonly serviceWorker: boolean;
}

export type HeadReading =
  | { readonly ok: true; readonly head: RequestHead }
  | { readonly ok: false; readonly refusal: ProxyRefusal };

/** RFC 9110 §9.3: methods whose body means something. */
export const EXPECTS_BODY: ReadonlySet<string> = new Set(['POST', 'PUT', 'PATCH']);

export const HOST = /^(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9_.-]{1,253})(?::[0-9]{1,5})?$/;
const NOT_SERVED = new Set(['TRACE', 'CONNECT', 'QUERY']);
export const isServed = (method: string): boolean => !NOT_SERVED.has(method);
/** Options a client may not end here: without them the request would be another one. */
const NOT_OPTIONS = ['host', 'content-length', 'transfer-encoding'] as const;
const NONE: readonly string[] = [];

const no = (refusal: ProxyRefusal): HeadReading => ({ ok: false, refusal });
const malformed = (detail: string): HeadReading => no({ reason: 'malformed', detail });

export function readHead(
  request: Pick<IncomingMessage, 'method' | 'httpVersion' | 'rawHeaders' | 'complete'>,
): HeadReading {
  const { method = '', httpVersion, rawHeaders } = request;
  // By what it is and not by what it says: node's HTTP/1 parser takes `HTTP/2.0` in a request line.
  const multiplexed = request instanceof Http2Request;
  if (httpVersion !== '1.1' && httpVersion !== '1.0' && !multiplexed)
    return malformed('the HTTP version is not served');
  // HTTP/2 carries any token as a method; node's HTTP/1 parser knows a list of them.
  if (!isMethod(method))
    return malformed('the method is not made of at most 32 upper-case letters and dashes');
  if (!isServed(method)) return no({ reason: 'method_not_served' });

  let host: string | undefined;
  let length: string | undefined;
  let coding: string | undefined;
  let expect: string | undefined;
  let upgrade: string | undefined;
  let connection: Set<string> | undefined;
  let authorization = NONE;
  let serviceWorker = false;
  for (let at = 0; at < rawHeaders.length; at += 2) {
    const name = rawHeaders[at] ?? '';
    const value = rawHeaders[at + 1] ?? '';
    // Only names of these lengths matter here; the others are not worth lower-casing.
    switch (name.length) {
      case 4:
        if (name.toLowerCase() !== 'host') break;
        if (host !== undefined) return malformed('more than one Host');
        host = value;
        break;
      case 6:
        if (name.toLowerCase() !== 'expect') break;
        if (expect !== undefined) return no({ reason: 'expectation_failed' });
        expect = value;
        break;
      case 7:
        if (name.toLowerCase() === 'upgrade') upgrade = upgrade === undefined ? value : `${upgrade},${value}`;
        break;
      case 10:
        if (name.toLowerCase() !== 'connection') break;
        connection ??= new Set();
        for (const option of value.split(',')) connection.add(option.trim().toLowerCase());
        break;
      case 13:
        if (name.toLowerCase() === 'authorization') authorization = [...authorization, value];
        break;
      case 14:
        if (name.toLowerCase() === 'service-worker') serviceWorker = true;
        if (name.toLowerCase() !== 'content-length') break;
        if (length !== undefined) return malformed('more than one Content-Length');
        length = value;
        break;
      case 17:
        if (name.toLowerCase() !== 'transfer-encoding') break;
        if (coding !== undefined) return malformed('more than one Transfer-Encoding');
        coding = value;
        break;
      default:
    }
  }

  if (host === undefined ? httpVersion !== '1.0' : !HOST.test(host)) return malformed('no clear Host');
  // RFC 9113 §8.2.2: fields about one connection make the request malformed.
  if (multiplexed && (coding !== undefined || connection !== undefined || upgrade !== undefined))
    return malformed('a field about the connection');
  if (coding !== undefined) {
    // RFC 9112 §6.1: both, or a coding on HTTP/1.0, is faulty framing.
    if (length !== undefined) return malformed('both Content-Length and Transfer-Encoding');
    if (httpVersion === '1.0') return malformed('Transfer-Encoding on HTTP/1.0');
    if (coding.toLowerCase() !== 'chunked') return no({ reason: 'coding_not_served' });
  }
  if (length !== undefined && !/^[0-9]{1,15}$/.test(length)) return malformed('no clear Content-Length');
  if (connection !== undefined)
    for (const name of NOT_OPTIONS)
      if (connection.has(name)) return malformed(`the Connection field names ${name}`);
  if (expect !== undefined && expect.toLowerCase() !== '100-continue')
    return no({ reason: 'expectation_failed' });

  const contentLength = length === undefined ? undefined : Number(length);
  // RFC 9113 §8.1: a body needs no length there; it is what comes before the end of the stream.
  const unmeasured = coding !== undefined || (multiplexed && length === undefined && !request.complete);
  return {
    ok: true,
    head: {
      host: host ?? '',
      framing: unmeasured ? 'chunked' : (contentLength ?? 0) > 0 ? 'length' : 'none',
      contentLength,
      expectsContinue: expect !== undefined && httpVersion !== '1.0',
      upgrade,
      connection,
      authorization,
      serviceWorker,
    },
  };
}
