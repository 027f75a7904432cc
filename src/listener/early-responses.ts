import type { IncomingMessage } from 'node:http';
import { sendJson } from '../http/json-response.ts';
import { getHeaderValues } from '../http/raw-headers.ts';
import type { RequestContext } from '../http/request-context.ts';
import { markEndedBySender } from './client-error.ts';
import { normalizeServerName } from './client-hello.ts';
import { keepAliveWithoutContinue } from './node-quirks/http1.ts';

/** Sends `100 Continue` once: when the body is first read, or earlier by a call of `writeContinue`. */
export function sendContinueOnRead({
  request,
  response,
}: Pick<RequestContext, 'request' | 'response'>): void {
  keepAliveWithoutContinue(request, response);
  const write = response.writeContinue.bind(response);
  let isSent = false;
  response.writeContinue = () => {
    if (isSent || response.headersSent) return;
    isSent = true;
    write();
  };
  request.once('resume', () => response.writeContinue());
}

export const expectsContinue = ({ headers }: IncomingMessage): boolean =>
  headers.expect?.toLowerCase() === '100-continue';

/** Whether the Host field or an absolute-form target names one of these hosts. */
export function namesAnyHost(request: IncomingMessage, hosts: ReadonlySet<string>): boolean {
  const authorities = getHeaderValues(request.rawHeaders, 'host');
  const [, authority] = /^[a-z][a-z0-9+.-]*:\/\/(?:[^/?#@]*@)?([^/?#]*)/i.exec(request.url ?? '') ?? [];
  if (authority !== undefined) authorities.push(authority);
  return authorities.some((host) => includesHost(host, hosts));
}

export const includesHost = (host: string, hosts: ReadonlySet<string>): boolean =>
  hosts.has(normalizeServerName(host.trim().replace(/:\d*$/, '')));

function sendErrorAndClose(
  { response, id }: RequestContext,
  {
    status,
    error,
    description,
  }: { readonly status: number; readonly error: string; readonly description: string },
): void {
  response.shouldKeepAlive = false;
  sendJson(response, {
    status,
    body: { error, error_description: description, request_id: id },
    headers: { connection: 'close' },
  });
}

/** RFC 9110 §15.5.20: the certificate policy of this host differs from that of the server name in the handshake. */
export const sendMisdirected = (context: RequestContext): void =>
  sendErrorAndClose(context, {
    status: 421,
    error: 'misdirected_request',
    description: 'use a separate connection for this host',
  });

/** RFC 9110 §15.5.15, RFC 6585 §5. */
export function sendTooLarge(context: RequestContext, status: 414 | 431): void {
  context.note({ decision: 'refused', reason: status === 414 ? 'target_too_long' : 'head_too_large' });
  sendErrorAndClose(context, {
    status,
    error: 'invalid_request',
    description: status === 414 ? 'the request target is too long' : 'too many or too large header fields',
  });
}

/** The client's network holds as much as it may. */
export function sendOverloaded(context: RequestContext): void {
  context.note({ decision: 'refused', reason: 'overloaded' });
  sendErrorAndClose(context, {
    status: 503,
    error: 'temporarily_unavailable',
    description: 'too many requests of your network are open; retry later',
  });
}

type TransferCodingFault = keyof typeof TRANSFER_CODING_ERRORS;

/** RFC 9112 §6.1: the only supported transfer coding is `chunked`, in one field, on HTTP/1.1. */
export function findTransferCodingFault({
  headers,
  rawHeaders,
  httpVersion,
}: IncomingMessage): TransferCodingFault | undefined {
  const coding = headers['transfer-encoding'];
  if (coding === undefined) return undefined;
  if (getHeaderValues(rawHeaders, 'transfer-encoding').length > 1) return 'several';
  if (httpVersion === '1.0') return 'http_1_0';
  return coding.toLowerCase() === 'chunked' ? undefined : 'unsupported';
}

const TRANSFER_CODING_ERRORS = {
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
  unsupported: {
    status: 501,
    error: 'not_implemented',
    description: 'The only supported transfer coding is chunked.',
    reason: 'transfer_coding_unsupported',
  },
} as const;

const DISCARD_MS = 1_000;

/**
 * The end of such a request is unknown (RFC 9112 §6.3), and the parser reports an error right after its header section. The
 * response is ended a moment later, so that closing with unread data does not reset the connection and discard it.
 */
export function rejectTransferCoding(context: RequestContext, fault: TransferCodingFault): void {
  const { request, response, id } = context;
  const { status, error, description, reason } = TRANSFER_CODING_ERRORS[fault];
  context.note({ decision: 'refused', reason });
  const text = JSON.stringify({ error, error_description: description, request_id: id });
  response.shouldKeepAlive = false;
  markEndedBySender(response);
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
