import type { ServerResponse } from 'node:http';

export interface JsonResponse {
  readonly status: number;
  readonly body: unknown;
  readonly headers?: Readonly<Record<string, string>>;
  /** HTTP/1.1 reason phrase; some clients show nothing else. */
  readonly reason?: string;
}

const NO_STORE_HEADERS = {
  'cache-control': 'no-store',
  pragma: 'no-cache',
  'x-content-type-options': 'nosniff',
} as const;

/** Short printable ASCII; other characters become question marks. */
const toReasonPhrase = (text: string): string => text.replace(/[^\x20-\x7e]/g, '?').slice(0, 120);

export function sendJson(
  response: ServerResponse,
  { status, body, headers = {}, reason }: JsonResponse,
): void {
  if (response.headersSent || response.destroyed) return;
  const text = JSON.stringify(body);
  if (reason !== undefined) response.statusMessage = toReasonPhrase(reason);
  response.writeHead(status, {
    ...NO_STORE_HEADERS,
    'content-type': 'application/json; charset=utf-8',
    'content-length': Buffer.byteLength(text),
    ...headers,
  });
  response.end(response.req.method === 'HEAD' ? undefined : text);
}
