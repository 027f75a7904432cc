import type { IncomingMessage, ServerResponse } from 'node:http';
import type { JsonResponse } from '../http/json-response.ts';
import { createJsonReply } from '../http/reply.ts';
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

export function sendJson(response: ServerResponse, jsonResponse: JsonResponse): void {
  if (response.headersSent || response.destroyed) return;
  const { status, headers, body = '' } = createJsonReply(jsonResponse);
  response.writeHead(status, { ...headers, 'content-length': Buffer.byteLength(body) });
  response.end(response.req.method === 'HEAD' ? undefined : body);
}
