import type { Epoch } from '../domain/epoch.ts';
import type { Grant } from '../domain/grant.ts';
import { type ProfileClaim, selectClaims } from '../domain/profile.ts';
import { formatOAuthScope, parseScope, type Scope } from '../domain/scope.ts';
import { CLOCK_TOLERANCE, type VerifiedToken } from '../domain/verified-token.ts';
import { omitUndefined } from '../lib/omit-undefined.ts';
import type { Json } from '../lib/strict-json.ts';
import { TwoGenerationCache } from '../lib/two-generation-cache.ts';
import { formatConfirmation, formatProfileClaims, readConfirmation, readProfileClaims } from './claims.ts';
import { decodeJsonObject, isCanonicalBase64url } from './jwt.ts';
import { ACCESS_TOKEN_TYPE, type Keyring, type SigningKey, signJwt } from './keyring.ts';
import { createTokenCache } from './token-cache.ts';

/** Longer than any token gatehouse issues: the longest scope and the longest profile fit. */
const MAX_LENGTH = 12_288;

/** RFC 9068 access token of a grant's current generation. The same record gives the same claims, and with EdDSA the same string. */
export function signAccessToken(
  key: SigningKey,
  issuer: string,
  grant: Grant,
  claims: ReadonlySet<ProfileClaim>,
): string {
  const scope = parseScope(grant.scope, { allowSpaces: true });
  if (!scope.ok) throw new Error(`grant ${grant.id} has a malformed scope`);
  return signJwt(key, ACCESS_TOKEN_TYPE, {
    iss: issuer,
    aud: grant.audience ?? issuer,
    sub: grant.identity,
    client_id: grant.clientId,
    scope: formatOAuthScope(scope.value),
    gid: grant.id,
    gen: grant.generation,
    jti: `${grant.id}.${grant.generation}`,
    iat: Math.floor(grant.rotatedAt),
    rev: grant.issuedAfter,
    exp: grant.accessExpires,
    ...formatProfileClaims(selectClaims(grant.profile, claims)),
    src: grant.exchangedFrom,
    cnf: formatConfirmation(grant),
  });
}

/** Many tokens have the same scope. */
const MAX_CACHED_SCOPES = 256;
const MAX_CACHED_SCOPE_LENGTH = 512;

/** Verifies and caches the JWTs of this issuer. */
export function createAccessTokenReader(keyring: Keyring, issuer: string, cacheSize: number) {
  const scopes = new TwoGenerationCache<Scope>(MAX_CACHED_SCOPES, MAX_CACHED_SCOPE_LENGTH);
  const readScope = (text: string): Scope | undefined => {
    const known = scopes.get(text);
    if (known !== undefined) return known;
    const parsed = parseScope(text, { allowSpaces: true });
    if (!parsed.ok) return undefined;
    scopes.set(text, parsed.value);
    return parsed.value;
  };
  const verify = async (
    token: string,
    payload: string,
    { verificationKey, kid }: SigningKey,
    now: Epoch,
  ): Promise<VerifiedToken | undefined> =>
    (await verificationKey.verify(token)) ? readClaims(payload, issuer, kid, now, readScope) : undefined;
  const { read, readUnlimited } = createTokenCache<never>({
    cacheSize,
    isAcceptedKey: ({ keyId }, now) => keyring.isVerificationKey(keyId, now),
    prepare(token, now) {
      if (token.length > MAX_LENGTH) return undefined;
      // The header must equal the header of one of our keys: algorithm, key and type are never read from the token.
      const [header = '', payload = '', signature = '', ...rest] = token.split('.', 4);
      const key = keyring.findByHeader(header, now);
      if (key === undefined || rest.length > 0) return undefined;
      return isCanonicalBase64url(payload) && isCanonicalBase64url(signature)
        ? () => verify(token, payload, key, now)
        : undefined;
    },
  });
  return { read, open: readUnlimited };
}

function readClaims(
  payload: string,
  issuer: string,
  keyId: string,
  now: Epoch,
  readScope: (text: string) => Scope | undefined,
): VerifiedToken | undefined {
  const claims = decodeJsonObject(payload);
  if (claims === undefined) return undefined;
  const { iss, aud, sub, client_id, scope, gid, gen, iat, rev, nbf, exp, src, cnf } = claims;
  // Exactly one: routes compare it with theirs.
  if (iss !== issuer || typeof aud !== 'string') return undefined;
  if (typeof sub !== 'string' || typeof client_id !== 'string' || typeof gid !== 'string') return undefined;
  if (!isInteger(iat) || !isInteger(exp) || !isInteger(gen) || typeof scope !== 'string') return undefined;
  if (nbf !== undefined && (!isInteger(nbf) || nbf > now + CLOCK_TOLERANCE)) return undefined;
  if (rev !== undefined && !isInteger(rev)) return undefined;
  if (src !== undefined && typeof src !== 'string') return undefined;
  const parsedScope = readScope(scope);
  if (parsedScope === undefined) return undefined;
  const binding = readConfirmation(cnf);
  if (binding === undefined) return undefined;
  return {
    grantId: gid,
    generation: gen,
    clientId: client_id,
    identity: sub,
    scope: parsedScope,
    issuedAt: iat,
    expires: exp,
    keyId,
    ...(aud !== issuer && { audience: [aud] }),
    ...omitUndefined({ issuedAfter: rev, exchangedFrom: src, profile: readProfileClaims(claims) }),
    ...binding,
  };
}

const isInteger = (value: Json | undefined): value is number => Number.isSafeInteger(value);
