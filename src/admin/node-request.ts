import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http';
import { TLSSocket } from 'node:tls';
import type { Reply } from '../http/reply.ts';
import type { HeaderFields } from '../http/request-head.ts';
import type { BodyReadResult } from '../http/service-request.ts';

/* The admin listener is a server of Node. */

/** A request to the admin listener. */
export type AdminMessage = ReturnType<typeof readMessage>;

export function readMessage(message: IncomingMessage) {
  const { socket, method = '', url = '', httpVersion, headers, rawHeaders } = message;
  // RFC 3986 §3.4: a query may contain question marks.
  const [, path = '', query = ''] = /^([^?]*)\??(.*)$/s.exec(url) ?? [];
  const tls = socket instanceof TLSSocket ? socket : undefined;
  return {
    method,
    /** Path and query, as sent. */
    url,
    path,
    query: new URLSearchParams(query),
    httpVersion,
    headers: headers as HeaderFields,
    rawHeaders,
    /** The address of the peer, which is not known once the connection is closed. */
    peer: socket.remoteAddress,
    isEncrypted: tls !== undefined,
    /** The client certificate of the connection, if `clientCa` has issued it. */
    getCertificate: () => (tls?.authorized === true ? tls.getPeerX509Certificate() : undefined),
    readBody: (maxBytes: number, seconds: number) => readMessageBody(message, maxBytes, seconds),
  };
}

/** Reads a request body into memory. It stops when the body exceeds the size or the time. */
export function readMessageBody(request: IncomingMessage, maxBytes: number, seconds: number): Promise<BodyReadResult> {
  return new Promise((resolve) => {
    const parts: Buffer[] = [];
    let length = 0;
    const finish = (result: BodyReadResult): void => {
      clearTimeout(timer);
      request.off('data', onData).off('end', onEnd).off('close', onAborted).off('error', onAborted);
      if (result.kind !== 'complete') request.on('error', () => {}).pause();
      resolve(result);
    };
    const onData = (part: Buffer): void => {
      length += part.length;
      if (length > maxBytes) return finish({ kind: 'too_large' });
      parts.push(part);
    };
    const onEnd = (): void => finish({ kind: 'complete', bytes: Buffer.concat(parts, length) });
    const onAborted = (): void => finish({ kind: 'aborted' });
    const timer = setTimeout(() => finish({ kind: 'timeout' }), seconds * 1_000);
    if (request.readableEnded) return onEnd();
    if (Number(request.headers['content-length'] ?? 0) > maxBytes) return finish({ kind: 'too_large' });
    request.on('data', onData).on('end', onEnd).on('close', onAborted).on('error', onAborted);
  });
}

export function sendReply(response: ServerResponse, { status, headers, body = '' }: Reply): void {
  const { req: request } = response;
  if (response.headersSent || response.destroyed) return;
  response.writeHead(status, {
    ...(headers as OutgoingHttpHeaders),
    'content-length': Buffer.byteLength(body),
    // The rest of an unread body must not be parsed as the next request.
    ...(request.method === 'POST' && !request.complete && { connection: 'close' }),
  });
  response.end(request.method === 'HEAD' ? undefined : body);
}
