import { type Outcome, ok, refused, refuseMalformed } from '../domain/refusal.ts';
import { getQuery } from './query.ts';
import { getHeaderValues } from './raw-headers.ts';
import type { HttpRequest } from './request-context.ts';

/**
 * The token in the value of an Authorization field; undefined unless it is `Bearer b64token` (RFC 6750 §2.1). The scheme is
 * case-insensitive (RFC 9110 §11.1). The grammar allows several spaces (§11.4); only one is accepted, because other parsers
 * differ about more.
 */
export const parseBearerToken = (credentials: string): string | undefined =>
  /^bearer ([A-Za-z0-9._~+/-]+=*)$/i.exec(credentials)?.[1];

/** The same for the DPoP scheme (RFC 9449 §7.1). */
export const parseDpopToken = (credentials: string): string | undefined =>
  /^dpop ([A-Za-z0-9._~+/-]+=*)$/i.exec(credentials)?.[1];

/** The token in the Authorization header. Its content is not checked. */
export function readBearerToken(request: Pick<HttpRequest, 'url' | 'rawHeaders'>): Outcome<string> {
  // RFC 6750 §5.3: tokens do not belong in URLs.
  if (/(?:^|&)(?:access_token|token)=/i.test(decodeLoosely(getQuery(request))))
    return refuseMalformed('Send the access token in the Authorization header, not in the URL.');
  const [value, ...more] = getHeaderValues(request.rawHeaders, 'authorization');
  if (value === undefined) return refused({ reason: 'token_missing' });
  if (more.length > 0) return refuseMalformed('Send one Authorization header.');
  const token = parseBearerToken(value);
  return token === undefined ? refused({ reason: 'token_invalid', fault: 'malformed' }) : ok(token);
}

const decodeLoosely = (query: string): string =>
  query.replace(/%([0-9a-f]{2})/gi, (_, hex: string) => String.fromCharCode(Number.parseInt(hex, 16)));
