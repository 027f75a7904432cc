import { createHmac, timingSafeEqual } from 'node:crypto';
import type { Epoch } from '../domain/epoch.ts';
import type { Keyring, SealingKey } from './keyring.ts';

/**
 * `ghr_<kid>.<grant>.<generation>.<mac>`: a refresh token names its grant and generation under a MAC. The store
 * keeps no secret for it, a forgery stops before the store is asked, and a lost answer can be made again.
 */
const SHAPE = /^ghr_([A-Za-z0-9]{4,32})\.([A-Za-z0-9_-]{22})\.([1-9][0-9]{0,9})\.([A-Za-z0-9_-]{43})$/;

const body = (kid: string, grantId: string, generation: number): string => `${kid}.${grantId}.${generation}`;

const mac = (key: SealingKey, text: string): string =>
  createHmac('sha256', key.secret).update(`refresh\n${text}`).digest('base64url');

export function sealRefreshToken(key: SealingKey, grantId: string, generation: number): string {
  const text = body(key.kid, grantId, generation);
  return `ghr_${text}.${mac(key, text)}`;
}

export interface OpenedRefresh {
  readonly grantId: string;
  readonly generation: number;
}

export function openRefreshToken(keyring: Keyring, token: string, now: Epoch): OpenedRefresh | undefined {
  const [, kid = '', grantId = '', digits = '', seal = ''] = SHAPE.exec(token) ?? [];
  const key = keyring.sealing(kid);
  if (key === undefined || now >= key.retireAt) return undefined;
  const generation = Number(digits);
  // Compared as strings of equal length: only the canonical spelling of the MAC passes.
  const expected = mac(key, body(kid, grantId, generation));
  return timingSafeEqual(Buffer.from(expected), Buffer.from(seal)) ? { grantId, generation } : undefined;
}
