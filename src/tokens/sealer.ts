import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto';
import type { Epoch } from '../domain/grant.ts';
import { isEqualConstantTime } from '../lib/constant-time.ts';
import { computeMac, isAcceptedAt, type SealingKey, type SealingKeys } from './keyring.ts';

const SEALED_PATTERN = /^ghs_([A-Za-z0-9]{4,32})\.([A-Za-z0-9_-]*)\.([A-Za-z0-9_-]{43})$/;
const ENCRYPTED_PATTERN = /^ghe_([A-Za-z0-9]{4,32})\.([A-Za-z0-9_-]+)$/;

/**
 * Protects small values that clients hold, such as the session cookie of the confirmation pages, for one purpose each: they
 * do not open for another purpose.
 */
export function createSealer(keyring: SealingKeys, now: () => Epoch) {
  const findKey = (kid: string): SealingKey | undefined => {
    const key = keyring.getSealingKey(kid);
    return key !== undefined && now() < key.retireAt ? key : undefined;
  };
  return {
    /** Authenticates, without encrypting. */
    seal(purpose: string, text: string): string {
      const key = keyring.getCurrentSealingKey(now());
      const body = `${key.kid}.${Buffer.from(text).toString('base64url')}`;
      return `ghs_${body}.${computeMac(key, `sealed ${purpose}`, body)}`;
    },
    open(purpose: string, sealed: string): string | undefined {
      const [, kid = '', encoded = '', presentedMac = ''] = SEALED_PATTERN.exec(sealed) ?? [];
      const key = findKey(kid);
      if (key === undefined) return undefined;
      const expected = computeMac(key, `sealed ${purpose}`, `${kid}.${encoded}`);
      if (!isEqualConstantTime(expected, presentedMac)) return undefined;
      return Buffer.from(encoded, 'base64url').toString();
    },
    /** Authenticates and encrypts, for values in URLs. */
    encrypt(purpose: string, text: string): string {
      const key = keyring.getCurrentSealingKey(now());
      return `ghe_${key.kid}.${encryptSecret(key, `encrypted ${purpose}`, Buffer.from(text))}`;
    },
    decrypt(purpose: string, encrypted: string): string | undefined {
      const [, kid = '', body = ''] = ENCRYPTED_PATTERN.exec(encrypted) ?? [];
      const key = findKey(kid);
      return key && decryptSecret(key, `encrypted ${purpose}`, body)?.toString();
    },
    /** A keyed digest, to look up a secret that is too short to be stored as a plain digest. */
    digest: (purpose: string, text: string): string =>
      computeMac(keyring.getCurrentSealingKey(now()), `digest ${purpose}`, text),
    /** The digests under every key that may have been current when the value was stored, newest first. */
    digests: (purpose: string, text: string): readonly string[] =>
      keyring.sealingKeys
        .filter((key) => isAcceptedAt(key, now()))
        .toSorted((a, b) => b.activeFrom - a.activeFrom)
        .map((key) => computeMac(key, `digest ${purpose}`, text)),
  };
}

export type Sealer = ReturnType<typeof createSealer>;

/**
 * A secret encrypted with a sealing key for storage: nonce | AES-256-GCM | tag. The name is additional authenticated
 * data, so one secret cannot be substituted for another.
 */
const CIPHER = 'aes-256-gcm';
const NONCE_BYTES = 12;
const TAG_BYTES = 16;

const deriveKey = ({ secret }: SealingKey): Buffer =>
  Buffer.from(hkdfSync('sha256', secret, '', 'gatehouse sealed secret 1', 32));

export function encryptSecret(key: SealingKey, name: string, secret: Buffer): string {
  const nonce = randomBytes(NONCE_BYTES);
  const cipher = createCipheriv(CIPHER, deriveKey(key), nonce).setAAD(Buffer.from(name));
  return Buffer.concat([nonce, cipher.update(secret), cipher.final(), cipher.getAuthTag()]).toString('base64url');
}

/** Returns undefined if it was modified, or encrypted with another key or name. */
export function decryptSecret(key: SealingKey, name: string, encrypted: string): Buffer | undefined {
  const bytes = Buffer.from(encrypted, 'base64url');
  if (bytes.length < NONCE_BYTES + TAG_BYTES) return undefined;
  const nonce = bytes.subarray(0, NONCE_BYTES);
  const decipher = createDecipheriv(CIPHER, deriveKey(key), nonce, { authTagLength: TAG_BYTES })
    .setAAD(Buffer.from(name))
    .setAuthTag(bytes.subarray(-TAG_BYTES));
  // Not concatenated: a copy would remain in memory after the caller has overwritten this buffer.
  const secret = decipher.update(bytes.subarray(NONCE_BYTES, -TAG_BYTES));
  try {
    decipher.final();
    return secret;
  } catch {
    secret.fill(0);
    return undefined;
  }
}
