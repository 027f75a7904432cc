import {
  createCipheriv,
  createDecipheriv,
  createHmac,
  createSecretKey,
  hkdfSync,
  type KeyObject,
  timingSafeEqual,
} from 'node:crypto';
import type { Bearer } from '../domain/bearer.ts';
import type { Epoch } from '../domain/epoch.ts';
import type { Grant } from '../domain/grant.ts';
import { parseScope } from '../domain/scope.ts';
import { boundedCache } from '../http/bounded-cache.ts';
import { Fault } from '../ports/fault.ts';
import type { RecordStore } from '../ports/record-store.ts';
import type { AccessHandle } from '../ports/token-mint.ts';
import { counts, type Keyring, type SealingKey } from './keyring.ts';

/**
 * An opaque access token is a sealed handle: grant, generation and times, encrypted under a MAC that is also the
 * initial counter (the SIV way: the same handle gives the same string, and nothing else is given away). 46 bytes,
 * which standard base64 writes in 64 characters that end in `==`.
 *
 *   mac (128 bits) | AES-256-CTR( grant id (132) | generation (36) | issued at (36) | expires (36) )
 */
const LENGTH = 64;
const MAC_BYTES = 16;
const HANDLE_BYTES = 30;
/** The last character carries two bits; the four unused ones are zero, or it is another spelling. */
const SHAPE = /^[A-Za-z0-9+/]{61}[AQgw]==$/;
/** 132 bits, as base64url writes them. */
const GRANT_ID = /^[A-Za-z0-9_-]{22}$/;
/** The largest number of 36 bits; as a time it is in the year 4147. */
const LARGEST = 2 ** 36 - 1;

export const looksOpaque = (token: string): boolean => token.length === LENGTH && token.endsWith('==');

interface Handle extends AccessHandle {
  readonly issuedAt: Epoch;
  readonly keyId: string;
}

interface Sealing {
  readonly mac: KeyObject;
  readonly cipher: KeyObject;
}

/** Made of a sealing key once, for this purpose alone. */
const made = new WeakMap<SealingKey, Sealing>();

function sealingOf(key: SealingKey): Sealing {
  const known = made.get(key);
  if (known !== undefined) return known;
  const bytes = Buffer.from(hkdfSync('sha256', key.secret, '', 'gatehouse opaque access token 1', 64));
  const sealing = {
    mac: createSecretKey(bytes.subarray(0, 32)),
    cipher: createSecretKey(bytes.subarray(32)),
  };
  made.set(key, sealing);
  return sealing;
}

/** The issuer is part of what is sealed: a handle counts only where it was made, as a JWT does. */
const macOf = ({ mac }: Sealing, issuer: string, handle: Buffer): Buffer =>
  createHmac('sha256', mac).update(`${issuer}\n`).update(handle).digest().subarray(0, MAC_BYTES);

export function sealAccessToken(key: SealingKey, issuer: string, grant: Grant): string {
  if (!GRANT_ID.test(grant.id))
    throw new Error(`grant ${grant.id} has an id that does not fit into a handle`);
  const sealing = sealingOf(key);
  const handle = Buffer.from(
    `${grant.id}${write36(grant.generation)}${write36(Math.floor(grant.rotatedAt))}${write36(grant.accessExpires)}`,
    'base64url',
  );
  const mac = macOf(sealing, issuer, handle);
  const cipher = createCipheriv('aes-256-ctr', sealing.cipher, mac);
  return Buffer.concat([mac, cipher.update(handle)]).toString('base64');
}

/** Six characters of base64url are 36 bits, so that the handle is one text of 40 characters before it is encrypted. */
const DIGITS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';

function write36(value: number): string {
  let rest = Math.min(Math.max(0, value), LARGEST);
  let text = '';
  for (let at = 0; at < 6; at += 1) {
    text = `${DIGITS[rest % 64]}${text}`;
    rest = Math.floor(rest / 64);
  }
  return text;
}

function read36(text: string): number {
  let value = 0;
  for (const digit of text) value = value * 64 + DIGITS.indexOf(digit);
  return value;
}

/** What a token names, when one of our keys sealed it here. Asks nobody. */
function openHandle(keyring: Keyring, issuer: string, token: string, now: Epoch): Handle | undefined {
  if (!SHAPE.test(token)) return undefined;
  const bytes = Buffer.from(token, 'base64');
  const mac = bytes.subarray(0, MAC_BYTES);
  for (const key of keyring.sealingKeys) {
    if (!counts(key, now)) continue;
    const sealing = sealingOf(key);
    const decipher = createDecipheriv('aes-256-ctr', sealing.cipher, mac);
    // A stream cipher has given everything when `update` returns.
    const handle = decipher.update(bytes.subarray(MAC_BYTES));
    if (handle.length !== HANDLE_BYTES || !timingSafeEqual(mac, macOf(sealing, issuer, handle))) continue;
    const text = handle.toString('base64url');
    return {
      grantId: text.slice(0, 22),
      generation: read36(text.slice(22, 28)),
      issuedAt: read36(text.slice(28, 34)),
      expires: read36(text.slice(34)),
      keyId: key.kid,
    };
  }
  return undefined;
}

export interface OpaqueTokenReader {
  read(token: string, now: Epoch): Bearer | undefined | Promise<Bearer | undefined>;
  open(token: string, now: Epoch): AccessHandle | undefined;
}

export interface OpaqueTokenReaderOptions {
  readonly keyring: Keyring;
  readonly issuer: string;
  /** How many tokens are remembered. */
  readonly remembered: number;
  readonly grants: Pick<RecordStore<Grant>, 'read'>;
}

/** Most look-ups under way at once, of different tokens: a store that stalls must not make the process grow. */
const MAX_LOOKUPS = 10_000;

/**
 * Reads opaque tokens. What we did not seal is refused without asking anybody; the first sight of one that we did is
 * one read of its grant, however many requests bring it at once; after that it is known. Whether a known one still
 * counts (expiry, revocation, a retired key) is asked anew each time it is seen.
 */
export function opaqueTokenReader(options: OpaqueTokenReaderOptions): OpaqueTokenReader {
  const { keyring, issuer, remembered, grants } = options;
  const memory = boundedCache<string, Bearer>(remembered);
  /** Run out, and their grants forgotten: nothing can come of them, so that the store is not asked again. */
  const gone = boundedCache<string, true>(remembered);
  const lookups = new Map<string, Promise<Bearer | undefined>>();

  const lookUp = async (token: string, handle: Handle, now: Epoch): Promise<Bearer | undefined> => {
    const found = await grants.read(handle.grantId);
    if (found === undefined) {
      if (now >= handle.expires) gone.set(token, true);
      return undefined;
    }
    const bearer = bearerOf(handle, found.record);
    memory.set(token, bearer);
    return bearer;
  };

  return {
    read(token, now) {
      const known = memory.get(token);
      const key = known && keyring.sealing(known.keyId);
      if (known !== undefined) return key !== undefined && counts(key, now) ? known : undefined;
      const underWay = lookups.get(token);
      if (underWay !== undefined) return underWay;
      const handle = openHandle(keyring, issuer, token, now);
      if (handle === undefined || gone.has(token)) return undefined;
      if (lookups.size >= MAX_LOOKUPS) throw new Fault('overloaded', 'too many tokens are being looked up');
      const lookup = lookUp(token, handle, now).finally(() => lookups.delete(token));
      lookups.set(token, lookup);
      return lookup;
    },
    open: (token, now) => openHandle(keyring, issuer, token, now),
  };
}

function bearerOf({ grantId, generation, issuedAt, expires, keyId }: Handle, grant: Grant): Bearer {
  const scope = parseScope(grant.scope, { spaces: true });
  if (!scope.ok) throw new Error(`grant ${grant.id} has a scope that cannot be read`);
  return {
    grantId,
    generation,
    clientId: grant.clientId,
    identity: grant.identity,
    scope: scope.value,
    issuedAt,
    expires,
    keyId,
    ...(grant.boundTo !== undefined && { boundTo: grant.boundTo }),
    ...(grant.revokedAt !== undefined && { grantEnded: true as const }),
  };
}
