/** What the Authorization fields of a request say. A function of their text alone. */
export type Credentials =
  | { readonly kind: 'none' }
  | { readonly kind: 'bearer'; readonly token: string }
  /** Meant as a bearer token, and none. */
  | { readonly kind: 'malformed' }
  /** Which of them counts, nobody can tell. */
  | { readonly kind: 'ambiguous'; readonly detail: string };

/** RFC 6750 §2.1: the scheme in any case, one space, b64token. */
const BEARER = /^bearer ([A-Za-z0-9._~+/-]+=*)$/i;
const NO_CREDENTIALS: Credentials = { kind: 'none' };

/** `values`: those of all Authorization fields. RFC 6750 §2: one token, sent in one way. */
export function readCredentials(values: readonly string[]): Credentials {
  const [value] = values;
  if (value === undefined) return NO_CREDENTIALS;
  if (values.length > 1) return { kind: 'ambiguous', detail: 'more than one Authorization field' };
  if (holdsTwoTokens(value)) return { kind: 'ambiguous', detail: 'more than one token' };
  if (!/^bearer(?:\s|$)/i.test(value)) return NO_CREDENTIALS;
  const token = BEARER.exec(value)?.[1];
  return token === undefined ? { kind: 'malformed' } : { kind: 'bearer', token };
}

const holdsTwoTokens = (value: string): boolean =>
  value.includes(',') && (/^bearer\b/i.test(value) || /,\s*bearer\b/i.test(value));
