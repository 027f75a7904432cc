import type { Grant } from '../domain/grant.ts';
import type { VerifiedToken } from '../domain/verified-token.ts';
import { isJsonObject, type Json } from '../lib/strict-json.ts';

/** The `cnf` claim (RFC 7800 §3.1) of a token that is bound to a certificate (RFC 8705 §3.1), a key (RFC 9449 §6.1) or both. */
export function formatConfirmation({ boundTo, proofKey }: Pick<Grant, 'boundTo' | 'proofKey'>) {
  if (boundTo === undefined && proofKey === undefined) return undefined;
  return {
    ...(boundTo !== undefined && { 'x5t#S256': boundTo }),
    ...(proofKey !== undefined && { jkt: proofKey }),
  };
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
  return { ...(boundTo !== undefined && { boundTo }), ...(proofKey !== undefined && { proofKey }) };
}
