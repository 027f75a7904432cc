import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto';
import type { SealingKey } from './keyring.ts';

/**
 * A secret that lies where others may read it, encrypted under a sealing key: nonce | AES-256-GCM | tag. It opens under
 * the name it was sealed for and no other, so nobody can put an old one in the place of another.
 */
const CIPHER = 'aes-256-gcm';
const NONCE_BYTES = 12;
const TAG_BYTES = 16;

const keyFor = ({ secret }: SealingKey): Buffer =>
  Buffer.from(hkdfSync('sha256', secret, '', 'gatehouse sealed secret 1', 32));

export function sealSecret(key: SealingKey, name: string, secret: Buffer): string {
  const nonce = randomBytes(NONCE_BYTES);
  const cipher = createCipheriv(CIPHER, keyFor(key), nonce).setAAD(Buffer.from(name));
  return Buffer.concat([nonce, cipher.update(secret), cipher.final(), cipher.getAuthTag()]).toString(
    'base64url',
  );
}

/** Undefined: it was not sealed by this key under this name, or somebody has changed it. */
export function openSecret(key: SealingKey, name: string, sealed: string): Buffer | undefined {
  const bytes = Buffer.from(sealed, 'base64url');
  if (bytes.length < NONCE_BYTES + TAG_BYTES) return undefined;
  const decipher = createDecipheriv(CIPHER, keyFor(key), bytes.subarray(0, NONCE_BYTES), {
    authTagLength: TAG_BYTES,
  })
    .setAAD(Buffer.from(name))
    .setAuthTag(bytes.subarray(-TAG_BYTES));
  // In one piece: a copy would stay in memory when its owner has overwritten this.
  const secret = decipher.update(bytes.subarray(NONCE_BYTES, -TAG_BYTES));
  try {
    decipher.final();
    return secret;
  } catch {
    secret.fill(0);
    return undefined;
  }
}
