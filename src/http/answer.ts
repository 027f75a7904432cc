import type { ServerResponse } from 'node:http';

export interface Answer {
  readonly status: number;
  readonly body: unknown;
  readonly headers?: Readonly<Record<string, string>>;
  /** HTTP/1.1 reason phrase: some clients show nothing else. Never a secret. */
  readonly reason?: string;
}

const NEVER_STORED = {
  'cache-control': 'no-store',
  pragma: 'no-cache',
  'x-content-type-options': 'nosniff',
} as const;

/** Reason phrases are short printable ASCII; anything else in them becomes a question mark. */
const asReasonPhrase = (text: string): string => text.replace(/[^\x20-\x7e]/g, '?').slice(0, 120);

/** Sends a JSON answer that nobody may store. HEAD gets the same head and no body. */
export function sendJson(response: ServerResponse, { status, body, headers = {}, reason }: Answer): void {
  if (response.headersSent || response.destroyed) return;
  const text = JSON.stringify(body);
  if (reason !== undefined) response.statusMessage = asReasonPhrase(reason);
  response.writeHead(status, {
    ...NEVER_STORED,
    'content-type': 'application/json; charset=utf-8',
    'content-length': Buffer.byteLength(text),
    ...headers,
  });
  response.end(response.req.method === 'HEAD' ? undefined : text);
}
