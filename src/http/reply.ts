import type { JsonResponse } from './json-response.ts';

/** A response of gatehouse itself. The connection adds the date, the length and the framing, and sends no body to a HEAD request. */
export interface Reply {
  readonly status: number;
  readonly headers: Readonly<Record<string, string | readonly string[]>>;
  /** The bytes of a buffer must not change. */
  readonly body?: string | Buffer;
  /** Follow the body. Only for clients that use HTTP/2. */
  readonly trailers?: Readonly<Record<string, string>>;
  /** For the log and the metrics, where it is not `status`: the status that a gateway is asked to respond with. */
  readonly loggedStatus?: number;
  /** The connection is closed after it (HTTP/1.1). */
  readonly close?: boolean;
  /** HTTP/1.1 reason phrase; some clients show nothing else. */
  readonly reasonPhrase?: string;
}

const NO_STORE_HEADERS = {
  'cache-control': 'no-store',
  pragma: 'no-cache',
  'x-content-type-options': 'nosniff',
} as const;

export const createJsonReply = ({ status, body, headers = {}, close = false, reason }: JsonResponse): Reply => ({
  status,
  headers: { ...NO_STORE_HEADERS, 'content-type': 'application/json; charset=utf-8', ...headers },
  body: JSON.stringify(body),
  close,
  // Short printable ASCII.
  ...(reason !== undefined && { reasonPhrase: reason.replace(/[^\x20-\x7e]/g, '?').slice(0, 120) }),
});
