import type { RejectionFault } from '../../domain/token-rejection.ts';
import { isJsonObject, type Json, type JsonObject } from '../../lib/strict-json.ts';
import { readText } from './claim-mapping.ts';

/** OpenID Connect Back-Channel Logout 1.0 §2.4. */
const LOGOUT_EVENT = 'http://schemas.openid.net/event/backchannel-logout';

/** `typ` is `logout+jwt`; providers that are older than the final specification send `JWT`, or none. */
export const LOGOUT_TOKEN_TYPES: ReadonlySet<string | undefined> = new Set(['logout+jwt', 'jwt', undefined]);

/** Seconds after `iat` in which a logout token is accepted: a stolen one is of no use later. */
export const MAX_LOGOUT_TOKEN_AGE = 300;

const getLogoutEvent = ({ events }: JsonObject): Json | undefined =>
  events !== undefined && isJsonObject(events) ? events[LOGOUT_EVENT] : undefined;

type LogoutFault = readonly [RejectionFault, claim: string];

/** Signed by the same keys as access tokens, it must never be accepted as one. */
export const isLogoutToken = (claims: JsonObject): boolean => getLogoutEvent(claims) !== undefined;

/** §2.6, steps 4 to 8, of a token whose signature, issuer, audience and times are valid. Or why it is not a logout token. */
export function readLogoutClaims(
  claims: JsonObject,
  identityClaim: string,
): { readonly subject: string | undefined; readonly session: string | undefined } | LogoutFault {
  const event = getLogoutEvent(claims);
  if (event === undefined || !isJsonObject(event)) return ['claim_missing', 'events'];
  // An ID token has a nonce; it must not pass for a logout token.
  if (Object.hasOwn(claims, 'nonce')) return ['claim_not_allowed', 'nonce'];
  if (readText(claims, 'jti') === undefined) return ['claim_missing', 'jti'];
  for (const name of ['sub', 'sid'])
    if (claims[name] !== undefined && readText(claims, name) === undefined) return ['claim_missing', name];
  const subject = readText(claims, identityClaim);
  const session = readText(claims, 'sid');
  return subject === undefined && session === undefined ? ['claim_missing', identityClaim] : { subject, session };
}

/** Hashes of what was issued together with an ID token (OpenID Connect Core §3.3.2.11). */
const HASHES = ['at_hash', 'c_hash'];

/**
 * An ID token states who signed in to a client, and grants nothing; its audience can be the same as that of access tokens.
 * Issuers mark it differently: Keycloak with `typ`, Cognito with `token_use`. A nonce is copied to access tokens by old
 * versions of Keycloak, but those have scopes.
 */
export function isIdToken(header: JsonObject, claims: JsonObject): boolean {
  // RFC 9068 §2.1: explicitly an access token.
  if (typeof header['typ'] === 'string' && /^(?:application\/)?at\+jwt$/i.test(header['typ'])) return false;
  const { typ, token_use: use, nonce, scope, scp } = claims;
  return (
    typ === 'ID' ||
    use === 'id' ||
    HASHES.some((name) => claims[name] !== undefined) ||
    (nonce !== undefined && scope === undefined && scp === undefined)
  );
}
