import {
  createCipheriv,
  createDecipheriv,
  createHmac,
  createSecretKey,
  hkdfSync,
  type KeyObject,
  timingSafeEqual,
} from 'node:crypto';
import type { Epoch, Grant, VerifiedToken } from '../domain/grant.ts';
import { parseScope } from '../domain/scope.ts';
import { type ProfileClaim, selectClaims } from '../domain/user.ts';
import { createBoundedCache } from '../lib/bounded-cache.ts';
import { omitUndefined } from '../lib/omit-undefined.ts';
import type { RecordStore } from '../ports/store.ts';
import { isAcceptedAt, type SealingKey, type SealingKeys } from './keyring.ts';
import { createTokenCache } from './token-cache.ts';

/**
 * An opaque access token is a sealed handle: grant, generation and times, encrypted with a MAC as the initial counter
 * (synthetic IV, RFC 5297: equal handles give equal strings and reveal nothing else). 46 bytes, in standard base64
 * 64 characters that end in `==`.
 *
 *   mac (128 bits) | AES-256-CTR( grant id (132) | generation (36) | issued at (36) | expires (36) )
 */
const TOKEN_LENGTH = 64;
const MAC_BYTES = 16;
const HANDLE_BYTES = 30;
/** The last character has two significant bits; in the canonical spelling the other four are zero. */
const TOKEN_PATTERN = /^[A-Za-z0-9+/]{61}[AQgw]==$/;
/** 132 bits in base64url. */
const GRANT_ID = /^[A-Za-z0-9_-]{22}$/;
/** As a time, in the year 4147. */
const MAX_36_BIT = 2 ** 36 - 1;

export const isOpaqueToken = (token: string): boolean => token.length === TOKEN_LENGTH && token.endsWith('==');

/** What a token says without a store lookup. */
type TokenHandle = Pick<VerifiedToken, 'grantId' | 'generation' | 'issuedAt' | 'expires' | 'keyId'>;

interface DerivedKeys {
  readonly mac: KeyObject;
  readonly cipher: KeyObject;
}

const derivedKeys = new WeakMap<SealingKey, DerivedKeys>();

function deriveKeys(key: SealingKey): DerivedKeys {
  const cached = derivedKeys.get(key);
  if (cached !== undefined) return cached;
  const bytes = Buffer.from(hkdfSync('sha256', key.secret, '', 'gatehouse opaque access token 1', 64));
  const keys = {
    mac: createSecretKey(bytes.subarray(0, 32)),
    cipher: createSecretKey(bytes.subarray(32)),
  };
  derivedKeys.set(key, keys);
  return keys;
}

/** The MAC covers the issuer: a handle is valid at its issuer only, as a JWT is. */
const computeMac = ({ mac }: DerivedKeys, issuer: string, handle: Buffer): Buffer =>
  createHmac('sha256', mac).update(`${issuer}\n`).update(handle).digest().subarray(0, MAC_BYTES);

export function createOpaqueToken(key: SealingKey, issuer: string, grant: Grant): string {
  if (!GRANT_ID.test(grant.id)) throw new Error(`grant ${grant.id} has an id that cannot be encoded in a handle`);
  const keys = deriveKeys(key);
  const handle = Buffer.from(
    `${grant.id}${encode36(grant.generation)}${encode36(Math.floor(grant.rotatedAt))}${encode36(grant.accessExpires)}`,
    'base64url',
  );
  const mac = computeMac(keys, issuer, handle);
  const cipher = createCipheriv('aes-256-ctr', keys.cipher, mac);
  return Buffer.concat([mac, cipher.update(handle)]).toString('base64');
}

/** Six base64url characters are 36 bits, so the plain text of a handle has 40 characters. */
const DIGITS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';

function encode36(value: number): string {
  let rest = Math.min(Math.max(0, value), MAX_36_BIT);
  let text = '';
  for (let at = 0; at < 6; at += 1) {
    text = `${DIGITS[rest % 64]}${text}`;
    rest = Math.floor(rest / 64);
  }
  return text;
}

function decode36(text: string): number {
  let value = 0;
  for (const digit of text) value = value * 64 + DIGITS.indexOf(digit);
  return value;
}

/** The contents of a token sealed with one of our keys for this issuer. No I/O. */
function openHandle(keyring: SealingKeys, issuer: string, token: string, now: Epoch): TokenHandle | undefined {
  if (!TOKEN_PATTERN.test(token)) return undefined;
  const bytes = Buffer.from(token, 'base64');
  const mac = bytes.subarray(0, MAC_BYTES);
  for (const key of keyring.sealingKeys) {
    if (!isAcceptedAt(key, now)) continue;
    const keys = deriveKeys(key);
    const decipher = createDecipheriv('aes-256-ctr', keys.cipher, mac);
    // A stream cipher needs no `final()`.
    const handle = decipher.update(bytes.subarray(MAC_BYTES));
    if (handle.length !== HANDLE_BYTES || !timingSafeEqual(mac, computeMac(keys, issuer, handle))) continue;
    const text = handle.toString('base64url');
    return {
      grantId: text.slice(0, 22),
      generation: decode36(text.slice(22, 28)),
      issuedAt: decode36(text.slice(28, 34)),
      expires: decode36(text.slice(34)),
      keyId: key.kid,
    };
  }
  return undefined;
}

interface OpaqueTokenReaderOptions {
  readonly keyring: SealingKeys;
  readonly issuer: string;
  readonly cacheSize: number;
  /** As in a JWT. */
  readonly claims: ReadonlySet<ProfileClaim>;
  readonly grants: Pick<RecordStore<Grant>, 'read'>;
}

/**
 * Reads opaque tokens. A forged handle is rejected without I/O; the first use of an authentic one reads its grant from
 * the store.
 */
export function createOpaqueTokenReader(options: OpaqueTokenReaderOptions) {
  const { keyring, issuer, cacheSize, claims, grants } = options;
  /** Expired tokens whose grants are gone: the store need not be read again. */
  const expiredTokens = createBoundedCache<string, true>(cacheSize);
  const open = (token: string, now: Epoch): TokenHandle | undefined => openHandle(keyring, issuer, token, now);

  const readGrant = async (token: string, handle: TokenHandle, now: Epoch): Promise<VerifiedToken | undefined> => {
    const found = await grants.read(handle.grantId);
    if (found === undefined && now >= handle.expires) expiredTokens.set(token, true);
    if (found === undefined || handle.generation < (found.record.audienceSince ?? 0)) return undefined;
    return toVerifiedToken(handle, issuer, found.record, claims);
  };

  const { read } = createTokenCache<never>({
    cacheSize,
    isAcceptedKey({ keyId }, now) {
      const key = keyring.getSealingKey(keyId);
      return key !== undefined && isAcceptedAt(key, now);
    },
    prepare(token, now) {
      const handle = open(token, now);
      return handle === undefined || expiredTokens.has(token) ? undefined : () => readGrant(token, handle, now);
    },
  });
  return { read, open };
}

function toVerifiedToken(
  { grantId, generation, issuedAt, expires, keyId }: TokenHandle,
  issuer: string,
  grant: Grant,
  claims: ReadonlySet<ProfileClaim>,
): VerifiedToken {
  const { issuedAfter, audience, exchangedFrom, boundTo, proofKey, revokedAt } = grant;
  const profile = selectClaims(grant.profile, claims);
  const scope = parseScope(grant.scope, { allowSpaces: true });
  if (!scope.ok) throw new Error(`grant ${grant.id} has a malformed scope`);
  return {
    grantId,
    generation,
    clientId: grant.clientId,
    identity: grant.identity,
    scope: scope.value,
    issuedAt,
    expires,
    keyId,
    ...omitUndefined({ issuedAfter, exchangedFrom, boundTo, proofKey, profile }),
    ...(audience !== undefined && audience !== issuer && { audience: [audience] }),
    ...(revokedAt !== undefined && { grantEnded: true as const }),
  };
}
