import type { IncomingMessage, ServerResponse } from 'node:http';
import { DOCUMENT_HEADERS } from '../http/document-headers.ts';

const SECURITY_HEADERS = {
  'content-security-policy': [
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "form-action 'self'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
  ].join('; '),
  ...DOCUMENT_HEADERS,
} as const;

export interface ConsoleReply {
  readonly status: number;
  readonly type?: 'text/html' | 'text/css' | 'text/javascript';
  readonly text?: string;
  readonly location?: string;
  readonly cookie?: string | undefined;
  readonly allow?: string;
  /** Seconds. */
  readonly retryAfter?: number;
}

export function sendReply(request: IncomingMessage, response: ServerResponse, reply: ConsoleReply): void {
  if (response.headersSent || response.destroyed) return;
  const { status, type, text = '', location, cookie, allow, retryAfter } = reply;
  response.writeHead(status, {
    ...SECURITY_HEADERS,
    ...(type !== undefined && { 'content-type': `${type}; charset=utf-8` }),
    'content-length': String(Buffer.byteLength(text)),
    ...(location !== undefined && { location }),
    ...(cookie !== undefined && { 'set-cookie': cookie }),
    ...(allow !== undefined && { allow }),
    ...(retryAfter !== undefined && { 'retry-after': String(Math.max(1, Math.ceil(retryAfter))) }),
    // The rest of an unread body must not be parsed as the next request.
    ...(request.method === 'POST' && !request.complete && { connection: 'close' }),
  });
  response.end(request.method === 'HEAD' ? undefined : text);
}
