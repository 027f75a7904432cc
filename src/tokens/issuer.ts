import type { Epoch, Grant, KeyIds } from '../domain/grant.ts';
import type { ProfileClaim } from '../domain/user.ts';
import { isEqualConstantTime } from '../lib/constant-time.ts';
import type { RecordStore } from '../ports/store.ts';
import { createAccessTokenReader, signAccessToken } from './access-token.ts';
import { computeMac, type Keyring, type SealingKey, type SealingKeys } from './keyring.ts';
import { createOpaqueToken, createOpaqueTokenReader, isOpaqueToken } from './opaque-token.ts';

interface TokenIssuerOptions {
  readonly keyring: Keyring;
  /** Issuer and audience of access tokens. */
  readonly publicUrl: string;
  /** Verified access tokens that are cached, of each format. */
  readonly cacheSize: number;
  /** The parts of a grant's profile that access tokens carry; omitted: none. */
  readonly claims?: ReadonlySet<ProfileClaim>;
  readonly grants: Pick<RecordStore<Grant>, 'read'>;
}

/** Issues and opens tokens. The same grant record yields the same refresh token, and with EdDSA the same access token. */
export function createTokenIssuer(options: TokenIssuerOptions) {
  const { keyring, publicUrl, cacheSize, claims = new Set(), grants } = options;
  const jwts = createAccessTokenReader(keyring, publicUrl, cacheSize);
  const opaqueTokens = createOpaqueTokenReader({ keyring, issuer: publicUrl, cacheSize, claims, grants });
  // A JWT contains no equals sign, so no token has both forms.
  const selectReader = (token: string) => (isOpaqueToken(token) ? opaqueTokens : jwts);
  return {
    /** The keys that new tokens are signed with. */
    getCurrentKeyIds: (now: Epoch): KeyIds => keyring.current(now),
    issueTokens(grant: Grant, now: Epoch) {
      // The keys of the generation recreate its tokens; once they have been removed, the current keys are used.
      const signing = keyring.getSigningKey(grant.keys.signing) ?? keyring.getCurrentSigningKey(now);
      const sealing = keyring.getSealingKey(grant.keys.sealing) ?? keyring.getCurrentSealingKey(now);
      return {
        accessToken:
          grant.format === 'opaque'
            ? createOpaqueToken(sealing, publicUrl, grant)
            : signAccessToken(signing, publicUrl, grant, claims),
        refreshToken: createRefreshToken(sealing, grant.id, grant.generation),
      };
    },
    /** Undefined unless the MAC of the refresh token is valid. */
    openRefreshToken: (token: string, now: Epoch) => verifyRefreshToken(keyring, token, now),
    /**
     * The contents of an authentic, canonical access token; the caller checks expiry and revocation. Synchronous for a cached
     * token. A new opaque token is looked up in the store, which may throw a `Fault`.
     */
    readAccessToken: (token: string, now: Epoch) => selectReader(token).read(token, now),
    /**
     * Without a store lookup and without the limit on concurrent verifications, so that a grant can be revoked while the store
     * is unreachable or many forged tokens are being verified.
     */
    openAccessToken: (token: string, now: Epoch) => selectReader(token).open(token, now),
  };
}

export type TokenIssuer = ReturnType<typeof createTokenIssuer>;

/**
 * `ghr_<kid>.<grant>.<generation>.<mac>`. The store holds no secret, a forged token is rejected without I/O, and the
 * response to a retry can be recomputed.
 */
const TOKEN_PATTERN = /^ghr_([A-Za-z0-9]{4,32})\.([A-Za-z0-9_-]{22})\.([1-9][0-9]{0,9})\.([A-Za-z0-9_-]{43})$/;

const PURPOSE = 'refresh';

const formatBody = (kid: string, grantId: string, generation: number): string => `${kid}.${grantId}.${generation}`;

export function createRefreshToken(key: SealingKey, grantId: string, generation: number): string {
  const text = formatBody(key.kid, grantId, generation);
  return `ghr_${text}.${computeMac(key, PURPOSE, text)}`;
}

function verifyRefreshToken(keyring: SealingKeys, token: string, now: Epoch) {
  const [, kid = '', grantId = '', digits = '', presentedMac = ''] = TOKEN_PATTERN.exec(token) ?? [];
  const key = keyring.getSealingKey(kid);
  if (key === undefined || now >= key.retireAt) return undefined;
  const generation = Number(digits);
  const expected = computeMac(key, PURPOSE, formatBody(kid, grantId, generation));
  // Compared as text, so that only the canonical spelling of the MAC is accepted.
  return isEqualConstantTime(expected, presentedMac) ? { grantId, generation } : undefined;
}
