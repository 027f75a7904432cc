import { createHmac, createPrivateKey, createSecretKey, type KeyObject } from 'node:crypto';
import { calculateJwkThumbprint } from 'jose/jwk/thumbprint';
import { exportJWK } from 'jose/key/export';
import { importJWK } from 'jose/key/import';
import { CLOCK_TOLERANCE, type Epoch, type KeyIds } from '../domain/grant.ts';
import { Fault } from '../ports/fault.ts';
import { PrivateKey, VerificationKey } from './jwt.ts';
import type { KeyringFile, SealingEntry, SigningAlgorithm, SigningEntry } from './keyring-file.ts';

export interface SigningKey extends KeyValidity {
  readonly alg: SigningAlgorithm;
  readonly privateKey: PrivateKey;
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
    privateKey: new PrivateKey(alg, createPrivateKey({ key: jwk, format: 'jwk' })),
    verificationKey: new VerificationKey(alg, publicKey),
    publicJwk: { ...(await exportJWK(publicKey)), kid, alg, use: 'sig' },
    header: encodeJson({ alg, typ: ACCESS_TOKEN_TYPE, kid }),
    activeFrom,
    retireAt,
    // RFC 7638.
    fingerprint: await calculateJwkThumbprint(publicPart),
  };
}

export interface KeyValidity {
  readonly kid: string;
  readonly activeFrom: Epoch;
  readonly retireAt: Epoch;
  /** Identifies the key without revealing it. */
  readonly fingerprint: string;
}

export interface SealingKey extends KeyValidity {
  readonly secret: KeyObject;
}

export type SealingKeys = ReturnType<typeof openSealingKeys>;

/** The symmetric keys of refresh tokens, opaque tokens, sessions and stored records. */
export function openSealingKeys({ sealing }: Pick<KeyringFile, 'sealing'>) {
  const sealingKeys: readonly SealingKey[] = sealing.map(importSealingKey);
  const byId = new Map(sealingKeys.map((key) => [key.kid, key]));
  return {
    sealingKeys,
    getSealingKey: (kid: string) => byId.get(kid),
    /** Throws a `Fault` when none is active. */
    getCurrentSealingKey: (now: Epoch) => findNewestActive(sealingKeys, now, 'sealing'),
  };
}

function importSealingKey({ kid, secret, activeFrom, retireAt = Number.POSITIVE_INFINITY }: SealingEntry): SealingKey {
  const bytes = Buffer.from(secret, 'base64url');
  const mac = createHmac('sha256', bytes).update('gatehouse sealing key').digest('base64url');
  return { kid, secret: createSecretKey(bytes), activeFrom, retireAt, fingerprint: mac.slice(0, 22) };
}

/** HMAC-SHA-256 for one purpose, base64url. */
export const computeMac = ({ secret }: SealingKey, purpose: string, text: string): string =>
  createHmac('sha256', secret).update(`${purpose}\n${text}`).digest('base64url');

/** Also true shortly before activation: a replica whose clock is ahead uses a new key earlier. */
export const isAcceptedAt = ({ activeFrom, retireAt }: KeyValidity, now: Epoch): boolean =>
  activeFrom <= now + CLOCK_TOLERANCE && now < retireAt;

function findNewestActive<K extends KeyValidity>(keys: readonly K[], now: Epoch, use: string): K {
  let newest: K | undefined;
  for (const key of keys) {
    const isActive = key.activeFrom <= now && now < key.retireAt;
    if (isActive && (newest === undefined || key.activeFrom >= newest.activeFrom)) newest = key;
  }
  if (newest === undefined)
    throw new Fault('keys_unavailable', `no ${use} key is active now; run \`gatehouse keys list\``);
  return newest;
}

/** RFC 7515 §3.1. `typ` states the kind of token, so that none passes for another (RFC 8725 §3.11). */
export const signJwt = (
  { alg, kid, privateKey }: SigningKey,
  typ: string,
  claims: Readonly<Record<string, unknown>>,
): string => privateKey.sign(`${encodeJson({ alg, typ, kid })}.${encodeJson(claims)}`);

const encodeJson = (value: Readonly<Record<string, unknown>>): string =>
  Buffer.from(JSON.stringify(value)).toString('base64url');
