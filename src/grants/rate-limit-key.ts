import { getRateLimitKey } from '../lib/rate-limiter.ts';
import { Fault } from '../ports/fault.ts';
import type { GrantDeps } from './deps.ts';

/**
 * The key that rate limits count an authenticated request under; undefined for all others, which are counted by
 * address. A client_id alone proves nothing. The checks are local, because the limits protect store and directory.
 */
export type RateLimitKey = string | undefined;

type KeyDeps = Pick<GrantDeps, 'tokenIssuer' | 'now'>;

/** Includes the address, so that a stolen spent token cannot use up the limit of its owner. */
const grantRateLimitKey = (grantId: string, address: string): RateLimitKey =>
  `grant:${grantId} ${getRateLimitKey(address)}`;

export function refreshTokenRateLimitKey(
  { tokenIssuer, now }: KeyDeps,
  token: string | undefined,
  address: string,
): RateLimitKey {
  const claims = token === undefined ? undefined : tokenIssuer.openRefreshToken(token, now());
  return claims && grantRateLimitKey(claims.grantId, address);
}

export async function accessTokenRateLimitKey(
  { tokenIssuer, now }: KeyDeps,
  token: string,
  address: string,
): Promise<RateLimitKey> {
  const claims = await tokenIssuer.openAccessToken(token, now());
  return claims && grantRateLimitKey(claims.grantId, address);
}

/** Only for device codes that this process has seen pending. */
export const deviceCodeRateLimitKey = (
  { pollLimiter }: Pick<GrantDeps, 'pollLimiter'>,
  requestId: string,
): RateLimitKey => (pollLimiter.isPolling(requestId) ? `device:${requestId}` : undefined);

/** The TLS handshake proved possession of the key. An unknown client_id does not create another key. */
export function certificateRateLimitKey(
  { certificateValidator, integrations, now }: Pick<GrantDeps, 'certificateValidator' | 'integrations' | 'now'>,
  der: Uint8Array | undefined,
  clientId?: string,
): RateLimitKey {
  if (der === undefined || (clientId !== undefined && !integrations.has(clientId))) return undefined;
  try {
    const validated = certificateValidator.validateLocally(der, now());
    return validated.ok ? `certificate:${validated.value.fingerprint} ${clientId ?? ''}` : undefined;
  } catch (error) {
    if (error instanceof Fault) return undefined;
    throw error;
  }
}
