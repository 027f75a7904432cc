import type { Epoch } from '../domain/epoch.ts';
import { isEqualConstantTime } from '../lib/constant-time.ts';
import type { Sealer } from '../ports/sealer.ts';
import { decryptSecret, encryptSecret } from './encrypted-secret.ts';
import { computeMac, isAcceptedAt, type SealingKeys } from './sealing-keys.ts';

const SEALED_PATTERN = /^ghs_([A-Za-z0-9]{4,32})\.([A-Za-z0-9_-]*)\.([A-Za-z0-9_-]{43})$/;
const ENCRYPTED_PATTERN = /^ghe_([A-Za-z0-9]{4,32})\.([A-Za-z0-9_-]+)$/;

/** Authenticates small values that clients hold, such as the session cookie of the confirmation pages. */
export function createSealer(keyring: SealingKeys, now: () => Epoch): Sealer {
  return {
    seal(purpose, text) {
      const key = keyring.getCurrentSealingKey(now());
      const body = `${key.kid}.${Buffer.from(text).toString('base64url')}`;
      return `ghs_${body}.${computeMac(key, `sealed ${purpose}`, body)}`;
    },
    open(purpose, sealed) {
      const [, kid = '', encoded = '', presentedMac = ''] = SEALED_PATTERN.exec(sealed) ?? [];
      const key = keyring.getSealingKey(kid);
      if (key === undefined || now() >= key.retireAt) return undefined;
      const expected = computeMac(key, `sealed ${purpose}`, `${kid}.${encoded}`);
      if (!isEqualConstantTime(expected, presentedMac)) return undefined;
      return Buffer.from(encoded, 'base64url').toString();
    },
    encrypt(purpose, text) {
      const key = keyring.getCurrentSealingKey(now());
      return `ghe_${key.kid}.${encryptSecret(key, `encrypted ${purpose}`, Buffer.from(text))}`;
    },
    decrypt(purpose, encrypted) {
      const [, kid = '', body = ''] = ENCRYPTED_PATTERN.exec(encrypted) ?? [];
      const key = keyring.getSealingKey(kid);
      if (key === undefined || now() >= key.retireAt) return undefined;
      return decryptSecret(key, `encrypted ${purpose}`, body)?.toString();
    },
    digest: (purpose, text) => computeMac(keyring.getCurrentSealingKey(now()), `digest ${purpose}`, text),
    digests: (purpose, text) =>
      keyring.sealingKeys
        .filter((key) => isAcceptedAt(key, now()))
        .toSorted((a, b) => b.activeFrom - a.activeFrom)
        .map((key) => computeMac(key, `digest ${purpose}`, text)),
  };
}
