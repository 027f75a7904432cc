import type { CryptoKey } from 'jose';
import { calculateJwkThumbprint } from 'jose/jwk/thumbprint';
import { exportJWK } from 'jose/key/export';
import { importJWK } from 'jose/key/import';
import type { Epoch } from '../domain/epoch.ts';
import type { KeyIds } from '../domain/grant.ts';
import type { KeyringFile, SigningAlgorithm, SigningEntry } from './keyring-file.ts';
import { findNewestActive, isAcceptedAt, type KeyValidity, openSealingKeys } from './sealing-keys.ts';
import { VerificationKey } from './signature.ts';

export interface SigningKey extends KeyValidity {
  readonly alg: SigningAlgorithm;
  readonly privateKey: CryptoKey;
  readonly verificationKey: VerificationKey;
  readonly publicJwk: Readonly<Record<string, unknown>>;
  /** The only protected header that access tokens of this key have, base64url. */
  readonly header: string;
}

/** RFC 9068 §2.1. */
export const ACCESS_TOKEN_TYPE = 'at+jwt';

export type Keyring = Awaited<ReturnType<typeof openKeyring>>;

/** The keys that create and verify tokens. A key is published, then active, then verifies only, then retires. */
export async function openKeyring(file: KeyringFile) {
  const sealing = openSealingKeys(file);
  const signingKeys = await Promise.all(file.signing.map(importSigningKey));
  const byId = new Map(signingKeys.map((key) => [key.kid, key]));
  const byHeader = new Map(signingKeys.map((key) => [key.header, key]));
  const getCurrentSigningKey = (now: Epoch): SigningKey => findNewestActive(signingKeys, now, 'signing');
  return {
    ...sealing,
    signingKeys,
    /** The keys that create tokens now. */
    current: (now: Epoch): KeyIds => ({
      signing: getCurrentSigningKey(now).kid,
      sealing: sealing.getCurrentSealingKey(now).kid,
    }),
    getSigningKey: (kid: string) => byId.get(kid),
    getCurrentSigningKey,
    /** The signing key whose access tokens have this header, if they are accepted now. */
    findByHeader(header: string, now: Epoch): SigningKey | undefined {
      const key = byHeader.get(header);
      return key && isAcceptedAt(key, now) ? key : undefined;
    },
    /** Are tokens of this signing key accepted now? */
    isVerificationKey: (kid: string, now: Epoch): boolean => {
      const key = byId.get(kid);
      return key !== undefined && isAcceptedAt(key, now);
    },
    /** All keys by id. */
    fingerprints: new Map<string, Pick<KeyValidity, 'fingerprint' | 'retireAt'>>(
      [...signingKeys, ...sealing.sealingKeys].map(({ kid, fingerprint, retireAt }) => [
        kid,
        { fingerprint, retireAt },
      ]),
    ),
  };
}

async function importSigningKey(entry: SigningEntry): Promise<SigningKey> {
  const { kid, alg, jwk, activeFrom, retireAt = Number.POSITIVE_INFINITY } = entry;
  const { d: _private, ...publicPart } = jwk;
  const publicKey = await importJWK(publicPart, alg);
  return {
    kid,
    alg,
    privateKey: await importJWK(jwk, alg),
    verificationKey: new VerificationKey(alg, publicKey),
    publicJwk: { ...(await exportJWK(publicKey)), kid, alg, use: 'sig' },
    header: Buffer.from(JSON.stringify({ alg, typ: ACCESS_TOKEN_TYPE, kid })).toString('base64url'),
    activeFrom,
    retireAt,
    // RFC 7638.
    fingerprint: await calculateJwkThumbprint(publicPart),
  };
}
