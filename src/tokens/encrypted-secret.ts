import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto';
import type { SealingKey } from './sealing-keys.ts';

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
  const decipher = createDecipheriv(CIPHER, deriveKey(key), bytes.subarray(0, NONCE_BYTES), {
    authTagLength: TAG_BYTES,
  })
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
