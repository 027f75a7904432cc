import type { IncomingMessage, ServerResponse } from 'node:http';
import { sendJson } from '../http/answer.ts';
import type { Call } from '../http/call.ts';
import { headerValues } from './caller.ts';
import { endsItself } from './client-error.ts';
import { hostName } from './client-hello.ts';

/**
 * `100 Continue` is said once, and at the latest when somebody begins to read the body: by then it was decided
 * that the caller may send one. Whoever wants it earlier calls `writeContinue`.
 */
export function continueWhenRead(request: IncomingMessage, response: ServerResponse): void {
  // Node closes the connection after a final response without `100 Continue`, since the client may or may not send its
  // body. Where the request is complete there is no such doubt, and a pipelined request may be in progress already.
  Object.defineProperty(response, '_expect_continue', {
    get: () => !request.complete && announcesBody(request),
  });
  const write = response.writeContinue.bind(response);
  let said = false;
  response.writeContinue = () => {
    if (said || response.headersSent) return;
    said = true;
    write();
  };
  request.once('resume', () => response.writeContinue());
}

const announcesBody = ({ headers }: IncomingMessage): boolean =>
  headers['transfer-encoding'] !== undefined || (headers['content-length'] ?? '0') !== '0';

export const waitsForContinue = ({ headers }: IncomingMessage): boolean =>
  headers.expect?.toLowerCase() === '100-continue';

/** Does the request speak to one of these hosts, in any of the places where a host can stand? */
export function namesOneOf(request: IncomingMessage, hosts: ReadonlySet<string>): boolean {
  const named = headerValues(request.rawHeaders, 'host');
  const [, authority] = /^[a-z][a-z0-9+.-]*:\/\/(?:[^/?#@]*@)?([^/?#]*)/i.exec(request.url ?? '') ?? [];
  if (authority !== undefined) named.push(authority);
  return named.some((host) => isOneOf(host, hosts));
}

export const isOneOf = (host: string, hosts: ReadonlySet<string>): boolean =>
  hosts.has(hostName(host.trim().replace(/:\d*$/, '')));

/** RFC 9110 §15.5.20: this connection was opened under another name, with another policy. */
export function misdirected({ response, id }: Call): void {
  response.shouldKeepAlive = false;
  sendJson(response, {
    status: 421,
    body: {
      error: 'misdirected_request',
      error_description: 'open a connection of its own for this host',
      request_id: id,
    },
    headers: { connection: 'close' },
  });
}

export type CodingFault = 'several' | 'http_1_0' | 'not_served';

/** RFC 9112 §6.1: what is wrong with the transfer coding of an HTTP/1 request, on any path. `chunked` alone is served. */
export function codingFault({ headers, rawHeaders, httpVersion }: IncomingMessage): CodingFault | undefined {
  const coding = headers['transfer-encoding'];
  if (coding === undefined) return undefined;
  if (headerValues(rawHeaders, 'transfer-encoding').length > 1) return 'several';
  if (httpVersion === '1.0') return 'http_1_0';
  return coding.toLowerCase() === 'chunked' ? undefined : 'not_served';
}

const CODING_REFUSALS = {
  several: {
    status: 400,
    error: 'invalid_request',
    description: 'The request is not acceptable: more than one Transfer-Encoding.',
    reason: 'malformed: more than one Transfer-Encoding',
  },
  http_1_0: {
    status: 400,
    error: 'invalid_request',
    description: 'The request is not acceptable: Transfer-Encoding on HTTP/1.0.',
    reason: 'malformed: Transfer-Encoding on HTTP/1.0',
  },
  not_served: {
    status: 501,
    error: 'not_implemented',
    description: 'The only transfer coding served is chunked.',
    reason: 'coding_not_served',
  },
} as const satisfies Record<CodingFault, object>;

const DISCARD_MS = 1_000;

/**
 * The end of such a request is unknown (RFC 9112 §6.3), and the parser reports an error right after its header section. The
 * response is ended a moment later, so that closing with unread data does not reset the connection and discard it.
 */
export function refuseCoding(call: Call, fault: CodingFault): void {
  const { request, response, id } = call;
  const { status, error, description, reason } = CODING_REFUSALS[fault];
  call.note({ decision: 'refused', reason });
  const text = JSON.stringify({ error, error_description: description, request_id: id });
  response.shouldKeepAlive = false;
  endsItself(response);
  response.writeHead(status, {
    'content-type': 'application/json; charset=utf-8',
    'content-length': Buffer.byteLength(text),
    'cache-control': 'no-store',
    'x-content-type-options': 'nosniff',
    'x-request-id': id,
    connection: 'close',
  });
  if (request.method === 'HEAD') response.flushHeaders();
  else response.write(text);
  request.resume();
  const timer = setTimeout(() => response.end(), DISCARD_MS);
  response.once('close', () => clearTimeout(timer));
}

/** RFC 9110 §15.5.15, RFC 6585 §5: more than anybody needs. */
export function tooLong(call: Call, status: 414 | 431): void {
  const { response, id } = call;
  response.shouldKeepAlive = false;
  call.note({ decision: 'refused', reason: status === 414 ? 'target_too_long' : 'head_too_large' });
  sendJson(response, {
    status,
    body: {
      error: 'invalid_request',
      error_description:
        status === 414 ? 'the target is too long' : 'the header fields are too many or too large',
      request_id: id,
    },
    headers: { connection: 'close' },
  });
}
