import { parseBearerToken } from '../../http/bearer-token.ts';

/** The Authorization fields of a request. */
export type Credentials =
  | { readonly kind: 'none' }
  | { readonly kind: 'bearer'; readonly token: string }
  /** The Bearer scheme without a valid token. */
  | { readonly kind: 'malformed' }
  /** More than one token. */
  | { readonly kind: 'ambiguous'; readonly detail: string };

const NO_CREDENTIALS: Credentials = { kind: 'none' };

/** `values`: of all Authorization fields. RFC 6750 §2: a request has one token. */
export function readCredentials(values: readonly string[]): Credentials {
  const [value] = values;
  if (value === undefined) return NO_CREDENTIALS;
  if (values.length > 1) return { kind: 'ambiguous', detail: 'more than one Authorization field' };
  if (hasSeveralTokens(value)) return { kind: 'ambiguous', detail: 'more than one token' };
  if (!/^bearer(?:\s|$)/i.test(value)) return NO_CREDENTIALS;
  const token = parseBearerToken(value);
  return token === undefined ? { kind: 'malformed' } : { kind: 'bearer', token };
}

const hasSeveralTokens = (value: string): boolean =>
  value.includes(',') && (/^bearer\b/i.test(value) || /,\s*bearer\b/i.test(value));
