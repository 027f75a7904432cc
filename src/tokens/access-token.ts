import { CLOCK_TOLERANCE, type Epoch, type Grant, type VerifiedToken } from '../domain/grant.ts';
import { formatOAuthScope, parseScope, type Scope } from '../domain/scope.ts';
import type { RejectionFault } from '../domain/token-rejection.ts';
import { createProfile, type Profile, type ProfileClaim, selectClaims } from '../domain/user.ts';
import { omitUndefined } from '../lib/omit-undefined.ts';
import { isJsonObject, type Json, type JsonObject } from '../lib/strict-json.ts';
import { TwoGenerationCache } from '../lib/two-generation-cache.ts';
import { decodeJsonObject, isCanonicalBase64url } from './jwt.ts';
import { ACCESS_TOKEN_TYPE, type Keyring, type SigningKey, signJwt } from './keyring.ts';
import { createTokenCache } from './token-cache.ts';

/** The `cnf` claim (RFC 7800 §3.1) of a token that is bound to a certificate (RFC 8705 §3.1), a key (RFC 9449 §6.1) or both. */
export function formatConfirmation({ boundTo, proofKey }: Pick<Grant, 'boundTo' | 'proofKey'>) {
  if (boundTo === undefined && proofKey === undefined) return undefined;
  return omitUndefined({ 'x5t#S256': boundTo, jkt: proofKey });
}

/**
 * Returns undefined if the token is bound in a way that cannot be checked. Unknown members are ignored (RFC 7800 §3.1),
 * but a token with a `cnf` is never accepted without a binding.
 */
export function readConfirmation(cnf: Json | undefined): Pick<VerifiedToken, 'boundTo' | 'proofKey'> | undefined {
  if (cnf === undefined) return {};
  if (!isJsonObject(cnf)) return undefined;
  const { 'x5t#S256': boundTo, jkt: proofKey } = cnf;
  if (boundTo === undefined && proofKey === undefined) return undefined;
  if (boundTo !== undefined && typeof boundTo !== 'string') return undefined;
  if (proofKey !== undefined && typeof proofKey !== 'string') return undefined;
  return omitUndefined({ boundTo, proofKey });
}

/** OpenID Connect Core §5.1; `groups`: RFC 9068 §2.2.3.1. */
export const formatProfileClaims = ({ name, email, groups }: Profile = {}) => ({
  preferred_username: name,
  email,
  groups,
});

/** What has another type is ignored: the signature is gatehouse's own, and a profile decides nothing. */
function readProfileClaims({ preferred_username: name, email, groups }: JsonObject): Profile | undefined {
  return createProfile({
    ...(typeof name === 'string' && { name }),
    ...(typeof email === 'string' && { email }),
    ...(isStringList(groups) && { groups }),
  });
}

const isStringList = (value: Json | undefined): value is readonly string[] =>
  Array.isArray(value) && value.every((item) => typeof item === 'string');

/** What the registered claims of a JWT must be (RFC 7519 §4.1). Times are checked if the token has them. */
export interface ClaimRules {
  readonly issuer?: string;
  /** At least one must be in `aud`. */
  readonly audience?: readonly string[];
  /** In the order in which they are looked for. */
  readonly required: readonly string[];
  /** Seconds by which the clock of the issuer may differ. */
  readonly clockTolerance: number;
  /** Seconds since `iat`, which must not be in the future either. */
  readonly maxAge?: number;
}

export type ClaimFault = readonly [fault: RejectionFault, claim?: string];

/** Returns undefined if the claims meet the rules. */
export function findClaimFault(claims: JsonObject, rules: ClaimRules, now: Epoch): ClaimFault | undefined {
  const { issuer, audience, required, clockTolerance, maxAge } = rules;
  for (const name of required) if (claims[name] === undefined) return ['claim_missing', name];
  const { iss, aud, iat, nbf, exp } = claims;
  if (issuer !== undefined && iss !== issuer) return ['claim_mismatch', 'iss'];
  if (audience !== undefined && !includesAudience(audience, aud)) return ['wrong_audience'];
  const second = Math.floor(now);
  if (!isAbsentOrNumber(iat)) return ['claim_missing', 'iat'];
  if (!isAbsentOrNumber(nbf)) return ['claim_missing', 'nbf'];
  if (nbf !== undefined && nbf > second + clockTolerance) return ['not_yet_valid'];
  if (!isAbsentOrNumber(exp)) return ['claim_missing', 'exp'];
  if (exp !== undefined && exp <= second - clockTolerance) return ['expired'];
  if (maxAge === undefined) return undefined;
  if (iat === undefined) return ['claim_missing', 'iat'];
  if (second - iat > maxAge + clockTolerance) return ['expired'];
  return iat - second > clockTolerance ? ['not_yet_valid'] : undefined;
}

const isAbsentOrNumber = (value: Json | undefined): value is number | undefined =>
  value === undefined || typeof value === 'number';

const includesAudience = (accepted: readonly string[], aud: Json | undefined): boolean =>
  typeof aud === 'string' ? accepted.includes(aud) : Array.isArray(aud) && accepted.some((name) => aud.includes(name));

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
