import {
  createHmac,
  createPrivateKey,
  createPublicKey,
  createSecretKey,
  hash,
  type KeyObject,
} from 'node:crypto';
import { CLOCK_TOLERANCE } from '../domain/bearer.ts';
import type { Epoch } from '../domain/epoch.ts';
import type { KeyIds } from '../domain/grant.ts';
import { Fault } from '../ports/fault.ts';
import type { KeyringFile, SealingEntry, SigningAlgorithm, SigningEntry } from './keyring-file.ts';

export interface SigningKey {
  readonly kid: string;
  readonly alg: SigningAlgorithm;
  readonly privateKey: KeyObject;
  readonly publicKey: KeyObject;
  /** The one protected header tokens of this key have, as it stands in the token. */
  readonly header: string;
  readonly activeFrom: Epoch;
  readonly retireAt: Epoch;
}

export interface SealingKey {
  readonly kid: string;
  readonly secret: KeyObject;
  readonly activeFrom: Epoch;
  readonly retireAt: Epoch;
}

/** The keys tokens are made and checked with. A key is published, then active, then only checks, then retires. */
export interface Keyring {
  /** The keys that make tokens now. */
  current(now: Epoch): KeyIds;
  signing(kid: string): SigningKey | undefined;
  sealing(kid: string): SealingKey | undefined;
  /** The signing key whose tokens begin with this header, when its tokens count now. */
  byHeader(header: string, now: Epoch): SigningKey | undefined;
  /** Do tokens of this signing key count now? */
  verifies(kid: string, now: Epoch): boolean;
  readonly sealingKeys: readonly SealingKey[];
  /** Public halves, for other parties (JWKS). */
  readonly publicKeys: readonly Readonly<Record<string, unknown>>[];
  /** kid → what identifies the key without telling it, and when it retires. */
  readonly fingerprints: ReadonlyMap<string, { readonly fingerprint: string; readonly retireAt: Epoch }>;
}

interface Lifetime {
  readonly activeFrom: Epoch;
  readonly retireAt: Epoch;
}

const active = (key: Lifetime, now: Epoch): boolean => key.activeFrom <= now && now < key.retireAt;

/** Does what was made with this key count now? A replica whose clock is a little ahead begins with a new key before us. */
export const counts = (key: Lifetime, now: Epoch): boolean => active(key, now) || comesSoon(key, now);

const comesSoon = ({ activeFrom, retireAt }: Lifetime, now: Epoch): boolean =>
  now < activeFrom && activeFrom <= now + CLOCK_TOLERANCE && now < retireAt;

export function openKeyring(file: KeyringFile): Keyring {
  const signing = new Map(file.signing.map((entry) => [entry.kid, openSigning(entry)]));
  const sealing = new Map(file.sealing.map((entry) => [entry.kid, openSealing(entry)]));
  const byHeader = new Map([...signing.values()].map((key) => [key.header, key]));

  const newest = <K extends SigningKey | SealingKey>(keys: Iterable<K>, now: Epoch, use: string): K => {
    let best: K | undefined;
    for (const key of keys)
      if (active(key, now) && (best === undefined || key.activeFrom >= best.activeFrom)) best = key;
    if (best === undefined)
      throw new Fault('keys_unavailable', `no ${use} key is active now; look at \`gatehouse keys list\``);
    return best;
  };

  return {
    current: (now) => ({
      signing: newest(signing.values(), now, 'signing').kid,
      sealing: newest(sealing.values(), now, 'sealing').kid,
    }),
    signing: (kid) => signing.get(kid),
    sealing: (kid) => sealing.get(kid),
    byHeader(header, now) {
      const key = byHeader.get(header);
      return key && counts(key, now) ? key : undefined;
    },
    verifies(kid, now) {
      const key = signing.get(kid);
      return key !== undefined && counts(key, now);
    },
    sealingKeys: [...sealing.values()],
    publicKeys: file.signing.map(({ kid, alg, jwk }) => ({ ...publicJwk(jwk), kid, alg, use: 'sig' })),
    fingerprints: new Map([
      ...file.signing.map(
        (entry) =>
          [entry.kid, { fingerprint: signingFingerprint(entry), retireAt: retireTime(entry) }] as const,
      ),
      ...file.sealing.map(
        (entry) =>
          [entry.kid, { fingerprint: sealingFingerprint(entry), retireAt: retireTime(entry) }] as const,
      ),
    ]),
  };
}

const retireTime = (entry: { readonly retireAt?: Epoch }): Epoch =>
  entry.retireAt ?? Number.POSITIVE_INFINITY;

function openSigning(entry: SigningEntry): SigningKey {
  const { kid, alg } = entry;
  const privateKey = createPrivateKey({ key: entry.jwk, format: 'jwk' });
  return {
    kid,
    alg,
    privateKey,
    publicKey: createPublicKey(privateKey),
    header: Buffer.from(JSON.stringify(protectedHeader(kid, alg))).toString('base64url'),
    activeFrom: entry.activeFrom,
    retireAt: retireTime(entry),
  };
}

const protectedHeader = (kid: string, alg: SigningAlgorithm) => ({ alg, typ: 'at+jwt', kid }) as const;

const openSealing = (entry: SealingEntry): SealingKey => ({
  kid: entry.kid,
  secret: createSecretKey(Buffer.from(entry.secret, 'base64url')),
  activeFrom: entry.activeFrom,
  retireAt: retireTime(entry),
});

const publicJwk = ({ d: _private, ...rest }: SigningEntry['jwk']): Readonly<Record<string, unknown>> => rest;

/** RFC 7638: the members that make the key, in their order. */
const signingFingerprint = ({ jwk }: SigningEntry): string =>
  hash(
    'sha256',
    JSON.stringify({ crv: jwk.crv, kty: jwk.kty, x: jwk.x, ...(jwk.y !== undefined && { y: jwk.y }) }),
    'base64url',
  );

const sealingFingerprint = ({ secret }: SealingEntry): string =>
  createHmac('sha256', Buffer.from(secret, 'base64url'))
    .update('gatehouse sealing key')
    .digest('base64url')
    .slice(0, 22);
