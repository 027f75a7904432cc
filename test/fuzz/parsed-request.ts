import type { RecordedRequest } from '../support/recording-upstream.ts';

/** A request as a parser read it. */
export interface ParsedRequest {
  readonly method: string;
  readonly target: string;
  /** Names and values in their order. */
  readonly fields: readonly string[];
  readonly body: string;
}

export const formatRequest = ({ method, target, fields, body }: ParsedRequest): string =>
  JSON.stringify([method, target, fields, body]);

/** Node loses bytes that arrive together with a head that has this field. The connection is closed after such a request. */
export const hasUpgrade = ({ fields }: Pick<ParsedRequest, 'fields'>): boolean =>
  fields.some((name, index) => index % 2 === 0 && name.toLowerCase() === 'upgrade');

/** Escapes of unreserved characters are equivalent to these, and the letters of others to each other (RFC 3986 §6.2.2). */
const normalizeEscapes = (target: string): string =>
  target.replace(/%[0-9a-f]{2}/gi, (escape) => {
    const character = String.fromCharCode(Number.parseInt(escape.slice(1), 16));
    return /[A-Za-z0-9._~-]/.test(character) ? character : escape.toUpperCase();
  });

/** Whether an upstream received this request; gatehouse changes the fields. */
export const isForwardOf = (
  { method, target, body }: RecordedRequest,
  { method: sentMethod, target: sentTarget, body: sentBody }: ParsedRequest,
): boolean =>
  method === sentMethod &&
  body === sentBody &&
  // RFC 9112 §3.2.2: of an absolute target, only the path is forwarded.
  normalizeEscapes(target) === normalizeEscapes(sentTarget.replace(/^https?:\/\/[^/?]*/i, ''));

const RANDOM_FIELDS = new Set(['x-request-id', 'traceparent']);

/** A forwarded request without values that are random or differ between upstreams. */
export function normalizeForwarded({ method, target, headers, body, trailers }: RecordedRequest): string {
  const fields = headers
    .map(([name, value]) => (RANDOM_FIELDS.has(name) ? name : name === 'host' ? 'host' : `${name}: ${value}`))
    .sort();
  return JSON.stringify([method, target, fields, body, trailers]);
}
