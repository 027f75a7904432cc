const MAX_LENGTH = 2_048;
/** RFC 3986 §3: a scheme, and characters of a URI. The percent sign only before two hex digits. */
const URI = /^[A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9\-._~:/?#[\]@!$&'()+,;=]|%[0-9A-Fa-f]{2})+$/;
const SPIFFE_SCHEME = /^spiffe:/i;

/** SPIFFE ID §2.1. */
const TRUST_DOMAIN = /^[a-z0-9._-]{1,255}$/;
/** SPIFFE ID §2.2. */
const SEGMENT = /^[A-Za-z0-9._-]+$/;

export const isTrustDomain = (text: string): boolean => TRUST_DOMAIN.test(text);

/** In any letter case, so that no spelling of the scheme avoids the rules for SPIFFE IDs. */
export const isSpiffeUri = (uri: string): boolean => SPIFFE_SCHEME.test(uri);

/** The trust domain of a valid SPIFFE ID. */
export const getTrustDomain = (spiffeId: string): string => spiffeId.split('/', 3)[2] ?? '';

/** Why a URI in a certificate cannot be an identity; undefined if it can. */
export function findUriProblem(uri: string): string | undefined {
  if (uri.length > MAX_LENGTH) return `is longer than ${MAX_LENGTH} characters`;
  if (uri.includes('*')) return 'contains a wildcard';
  if (!URI.test(uri)) return 'is not a URI';
  return isSpiffeUri(uri) ? findSpiffeIdProblem(uri) : undefined;
}

/** X509-SVID §2: the certificate of a workload has a SPIFFE ID with a path. */
function findSpiffeIdProblem(uri: string): string | undefined {
  if (!uri.startsWith('spiffe://')) return 'is not a SPIFFE ID: it does not begin with spiffe://';
  const [trustDomain = '', ...segments] = uri.slice('spiffe://'.length).split('/');
  if (!isTrustDomain(trustDomain))
    return 'is not a SPIFFE ID: its trust domain may contain lower-case letters, digits, dots, dashes and underscores';
  if (segments.length === 0) return 'is the SPIFFE ID of a trust domain, and not of a workload';
  if (segments.some((segment) => segment === '' || segment === '.' || segment === '..'))
    return 'is not a SPIFFE ID: its path has an empty or a dot segment';
  return segments.every((segment) => SEGMENT.test(segment))
    ? undefined
    : 'is not a SPIFFE ID: its path may contain letters, digits, dots, dashes and underscores';
}
