import { createHmac, createPrivateKey, sign } from 'node:crypto';
import { join } from 'node:path';
import { type KeyringFile, readKeyringFile } from '../../src/tokens/keyring-file.ts';
import type { TestGateway } from './test-gateway.ts';

/** Tokens that an attacker with the key file could create: signed with the real keys, but invalid in one respect. */

export const keyFilePath = (gateway: TestGateway): string => join(gateway.folder, 'data', 'keys.json');

export const loadKeyring = (gateway: TestGateway): KeyringFile => readKeyringFile(keyFilePath(gateway));

export const base64url = (value: unknown): string =>
  Buffer.from(typeof value === 'string' ? value : JSON.stringify(value)).toString('base64url');

export interface DecodedJwt {
  readonly header: Readonly<Record<string, unknown>>;
  readonly claims: Readonly<Record<string, unknown>>;
  readonly parts: readonly [header: string, payload: string, signature: string];
}

/** Decodes an access token without verifying it. */
export function decodeJwt(token: string): DecodedJwt {
  const [header = '', payload = '', signature = ''] = token.split('.');
  const read = (part: string) => JSON.parse(Buffer.from(part, 'base64url').toString()) as Record<string, unknown>;
  return { header: read(header), claims: read(payload), parts: [header, payload, signature] };
}

/**
 * Signs exactly these bytes with the newest (or the named) signing key, with the usual header or a changed one.
 * Not done with a library, which would refuse to create invalid tokens.
 */
export function signJwtWith(
  keys: KeyringFile,
  payload: string,
  changedHeader: Readonly<Record<string, unknown>> = {},
  kid = keys.signing.at(-1)?.kid,
): string {
  const key = keys.signing.find((candidate) => candidate.kid === kid);
  if (key === undefined) throw new Error(`no signing key ${kid}`);
  const input = `${base64url({ alg: key.alg, typ: 'at+jwt', kid: key.kid, ...changedHeader })}.${base64url(payload)}`;
  const privateKey = createPrivateKey({ key: key.jwk, format: 'jwk' });
  const signature = sign(key.alg === 'EdDSA' ? null : 'sha256', Buffer.from(input), {
    key: privateKey,
    dsaEncoding: 'ieee-p1363',
  });
  return `${input}.${signature.toString('base64url')}`;
}

/** A refresh token for any grant and generation with a valid MAC. */
export function forgeRefreshToken(keys: KeyringFile, grantId: string, generation: number | string): string {
  const key = keys.sealing.at(-1);
  if (key === undefined) throw new Error('no sealing key');
  const body = `${key.kid}.${grantId}.${generation}`;
  const mac = createHmac('sha256', Buffer.from(key.secret, 'base64url')).update(`refresh\n${body}`);
  return `ghr_${body}.${mac.digest('base64url')}`;
}

export interface RefreshParts {
  readonly kid: string;
  readonly grantId: string;
  readonly generation: number;
  readonly mac: string;
}

export function splitRefreshToken(token: string): RefreshParts {
  const [kid = '', grantId = '', generation = '', mac = ''] = token.replace(/^ghr_/, '').split('.');
  return { kid, grantId, generation: Number(generation), mac };
}
