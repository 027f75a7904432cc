import type { Epoch } from '../domain/epoch.ts';
import type { Grant, KeyIds } from '../domain/grant.ts';
import type { VerifiedToken } from '../domain/verified-token.ts';

/** What an authentic, canonical access token names without a store lookup. */
export interface AccessTokenReference {
  readonly grantId: string;
  readonly generation: number;
  readonly expires: Epoch;
}

export interface TokenPair {
  readonly accessToken: string;
  readonly refreshToken: string;
}

/** Issues and opens tokens. The same grant record yields the same refresh token, and with EdDSA the same access token. */
export interface TokenIssuer {
  /** The keys that new tokens are signed with. */
  getCurrentKeyIds(now: Epoch): KeyIds;
  issueTokens(grant: Grant, now: Epoch): Promise<TokenPair>;
  /** Undefined unless the MAC of the refresh token is valid. */
  openRefreshToken(token: string, now: Epoch): { readonly grantId: string; readonly generation: number } | undefined;
  /**
   * The contents of an authentic, canonical access token; the caller checks expiry and revocation. Synchronous for a cached
   * token. A new opaque token is looked up in the store, which may throw a `Fault`.
   */
  readAccessToken(token: string, now: Epoch): VerifiedToken | undefined | Promise<VerifiedToken | undefined>;
  /**
   * Without a store lookup and without the limit on concurrent verifications, so that a grant can be revoked while the store
   * is unreachable or many forged tokens are being verified.
   */
  openAccessToken(
    token: string,
    now: Epoch,
  ): AccessTokenReference | undefined | Promise<AccessTokenReference | undefined>;
}
