import { createHmac, timingSafeEqual } from 'node:crypto';
import type { Epoch } from '../domain/epoch.ts';
import type { Sealer } from '../ports/sealer.ts';
import { counts, type Keyring, type SealingKey } from './keyring.ts';

const SHAPE = /^ghs_([A-Za-z0-9]{4,32})\.([A-Za-z0-9_-]*)\.([A-Za-z0-9_-]{43})$/;

const mac = (key: SealingKey, purpose: string, text: string): string =>
  createHmac('sha256', key.secret).update(`${purpose}\n${text}`).digest('base64url');

/** Small values that leave the house and come back, such as the confirmation page's session. */
export function createSealer(keyring: Keyring, now: () => Epoch): Sealer {
  return {
    seal(purpose, text) {
      const key = keyring.sealing(keyring.current(now()).sealing);
      if (key === undefined) throw new Error('the current sealing key is in the keyring');
      const body = `${key.kid}.${Buffer.from(text).toString('base64url')}`;
      return `ghs_${body}.${mac(key, `sealed ${purpose}`, body)}`;
    },
    open(purpose, sealed) {
      const [, kid = '', encoded = '', seal = ''] = SHAPE.exec(sealed) ?? [];
      const key = keyring.sealing(kid);
      if (key === undefined || now() >= key.retireAt) return undefined;
      const expected = mac(key, `sealed ${purpose}`, `${kid}.${encoded}`);
      if (!timingSafeEqual(Buffer.from(expected), Buffer.from(seal))) return undefined;
      return Buffer.from(encoded, 'base64url').toString();
    },
    digest(purpose, text) {
      const key = keyring.sealing(keyring.current(now()).sealing);
      if (key === undefined) throw new Error('the current sealing key is in the keyring');
      return mac(key, `digest ${purpose}`, text);
    },
    digests: (purpose, text) =>
      keyring.sealingKeys
        .filter((key) => counts(key, now()))
        .toSorted((a, b) => b.activeFrom - a.activeFrom)
        .map((key) => mac(key, `digest ${purpose}`, text)),
  };
}
