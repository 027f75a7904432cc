import { createHmac, createSecretKey, type KeyObject } from 'node:crypto';
import type { Epoch } from '../domain/epoch.ts';
import { CLOCK_TOLERANCE } from '../domain/verified-token.ts';
import { Fault } from '../ports/fault.ts';
import type { KeyringFile, SealingEntry } from './keyring-file.ts';

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

export function findNewestActive<K extends KeyValidity>(keys: readonly K[], now: Epoch, use: string): K {
  let newest: K | undefined;
  for (const key of keys) {
    const isActive = key.activeFrom <= now && now < key.retireAt;
    if (isActive && (newest === undefined || key.activeFrom >= newest.activeFrom)) newest = key;
  }
  if (newest === undefined)
    throw new Fault('keys_unavailable', `no ${use} key is active now; run \`gatehouse keys list\``);
  return newest;
}
