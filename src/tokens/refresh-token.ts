import type { Epoch } from '../domain/epoch.ts';
import { isEqualConstantTime } from '../lib/constant-time.ts';
import { computeMac, type SealingKey, type SealingKeys } from './sealing-keys.ts';

/**
 * `ghr_<kid>.<grant>.<generation>.<mac>`. The store holds no secret, a forged token is rejected without I/O, and the
 * response to a retry can be recomputed.
 */
const TOKEN_PATTERN = /^ghr_([A-Za-z0-9]{4,32})\.([A-Za-z0-9_-]{22})\.([1-9][0-9]{0,9})\.([A-Za-z0-9_-]{43})$/;

const PURPOSE = 'refresh';

const formatBody = (kid: string, grantId: string, generation: number): string => `${kid}.${grantId}.${generation}`;

export function createRefreshToken(key: SealingKey, grantId: string, generation: number): string {
  const text = formatBody(key.kid, grantId, generation);
  return `ghr_${text}.${computeMac(key, PURPOSE, text)}`;
}

export function verifyRefreshToken(keyring: SealingKeys, token: string, now: Epoch) {
  const [, kid = '', grantId = '', digits = '', presentedMac = ''] = TOKEN_PATTERN.exec(token) ?? [];
  const key = keyring.getSealingKey(kid);
  if (key === undefined || now >= key.retireAt) return undefined;
  const generation = Number(digits);
  const expected = computeMac(key, PURPOSE, formatBody(kid, grantId, generation));
  // Compared as text, so that only the canonical spelling of the MAC is accepted.
  return isEqualConstantTime(expected, presentedMac) ? { grantId, generation } : undefined;
}
