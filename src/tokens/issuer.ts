import type { Grant } from '../domain/grant.ts';
import type { ProfileClaim } from '../domain/profile.ts';
import type { RecordStore } from '../ports/record-store.ts';
import type { TokenIssuer } from '../ports/token-issuer.ts';
import { createAccessTokenReader, signAccessToken } from './access-token.ts';
import type { Keyring } from './keyring.ts';
import { createOpaqueToken, createOpaqueTokenReader, isOpaqueToken } from './opaque-token.ts';
import { createRefreshToken, verifyRefreshToken } from './refresh-token.ts';

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

export function createTokenIssuer({
  keyring,
  publicUrl,
  cacheSize,
  claims = new Set(),
  grants,
}: TokenIssuerOptions): TokenIssuer {
  const jwts = createAccessTokenReader(keyring, publicUrl, cacheSize);
  const opaqueTokens = createOpaqueTokenReader({ keyring, issuer: publicUrl, cacheSize, claims, grants });
  return {
    getCurrentKeyIds: (now) => keyring.current(now),
    async issueTokens(grant, now) {
      // The keys of the generation recreate its tokens; once they have been removed, the current keys are used.
      const signing = keyring.getSigningKey(grant.keys.signing) ?? keyring.getCurrentSigningKey(now);
      const sealing = keyring.getSealingKey(grant.keys.sealing) ?? keyring.getCurrentSealingKey(now);
      return {
        accessToken:
          grant.format === 'opaque'
            ? createOpaqueToken(sealing, publicUrl, grant)
            : await signAccessToken(signing, publicUrl, grant, claims),
        refreshToken: createRefreshToken(sealing, grant.id, grant.generation),
      };
    },
    openRefreshToken: (token, now) => verifyRefreshToken(keyring, token, now),
    // A JWT contains no equals sign, so no token has both forms.
    readAccessToken: (token, now) => (isOpaqueToken(token) ? opaqueTokens : jwts).read(token, now),
    openAccessToken: (token, now) => (isOpaqueToken(token) ? opaqueTokens : jwts).open(token, now),
  };
}
