import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http';
import type { Reply } from '../http/reply.ts';
import type { BodyReadResult } from '../http/service-request.ts';

/* The admin listener is a server of Node. */

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

export function sendReply(response: ServerResponse, { status, headers, body = '', close = false }: Reply): void {
  if (response.headersSent || response.destroyed) return;
  response.writeHead(status, {
    ...(headers as OutgoingHttpHeaders),
    'content-length': Buffer.byteLength(body),
    ...(close && { connection: 'close' }),
  });
  response.end(response.req.method === 'HEAD' ? undefined : body);
}
