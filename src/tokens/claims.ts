import type { Epoch } from '../domain/epoch.ts';
import type { Grant } from '../domain/grant.ts';
import { createProfile, type Profile } from '../domain/profile.ts';
import type { RejectionFault } from '../domain/token-rejection.ts';
import type { VerifiedToken } from '../domain/verified-token.ts';
import { omitUndefined } from '../lib/omit-undefined.ts';
import { isJsonObject, type Json, type JsonObject } from '../lib/strict-json.ts';

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
export function readProfileClaims({ preferred_username: name, email, groups }: JsonObject): Profile | undefined {
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
