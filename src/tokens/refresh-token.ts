import { createHmac, timingSafeEqual } from 'node:crypto';
import type { Epoch } from '../domain/epoch.ts';
import type { SealingKey, SealingKeys } from './sealing-keys.ts';

/**
 * `ghr_<kid>.<grant>.<generation>.<mac>`. The store holds no secret, a forged token is rejected without I/O, and the
 * response to a retry can be recomputed.
 */
const TOKEN_PATTERN =
  /^ghr_([A-Za-z0-9]{4,32})\.([A-Za-z0-9_-]{22})\.([1-9][0-9]{0,9})\.([A-Za-z0-9_-]{43})$/;

const formatBody = (kid: string, grantId: string, generation: number): string =>
  `${kid}.${grantId}.${generation}`;

const computeMac = (key: SealingKey, text: string): string =>
  createHmac('sha256', key.secret).update(`refresh\n${text}`).digest('base64url');

export function createRefreshToken(key: SealingKey, grantId: string, generation: number): string {
  const text = formatBody(key.kid, grantId, generation);
  return `ghr_${text}.${computeMac(key, text)}`;
}

export interface RefreshTokenClaims {
  readonly grantId: string;
  readonly generation: number;
}

export function verifyRefreshToken(
  keyring: SealingKeys,
  token: string,
  now: Epoch,
): RefreshTokenClaims | undefined {
  const [, kid = '', grantId = '', digits = '', presentedMac = ''] = TOKEN_PATTERN.exec(token) ?? [];
  const key = keyring.getSealingKey(kid);
  if (key === undefined || now >= key.retireAt) return undefined;
  const generation = Number(digits);
  // Compared as text, so that only the canonical spelling of the MAC is accepted.
  const expected = computeMac(key, formatBody(kid, grantId, generation));
  return timingSafeEqual(Buffer.from(expected), Buffer.from(presentedMac))
    ? { grantId, generation }
    : undefined;
}
