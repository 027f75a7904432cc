import type { Epoch } from '../domain/epoch.ts';
import type { RejectionFault } from '../domain/token-rejection.ts';
import type { Json, JsonObject } from '../lib/strict-json.ts';

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
