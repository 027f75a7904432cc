import type { JsonObject } from '../../lib/strict-json.ts';

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
