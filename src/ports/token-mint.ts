import type { Bearer } from '../domain/bearer.ts';
import type { Epoch } from '../domain/epoch.ts';
import type { Grant, KeyIds } from '../domain/grant.ts';

/** What an access token names by itself, when it is authentic and canonical. */
export interface AccessHandle {
  readonly grantId: string;
  readonly generation: number;
  readonly expires: Epoch;
}

export interface TokenPair {
  readonly accessToken: string;
  readonly refreshToken: string;
}

/** Makes and reads tokens. The same grant record always gives the same refresh token, and with EdDSA the same access token. */
export interface TokenMint {
  /** The keys that new tokens are made with now. */
  keys(now: Epoch): KeyIds;
  pair(grant: Grant, now: Epoch): Promise<TokenPair>;
  /** Who a refresh token says it is, when its seal is ours; undefined for everything else. */
  openRefresh(
    token: string,
    now: Epoch,
  ): { readonly grantId: string; readonly generation: number } | undefined;
  /**
   * What an access token says, when it is authentic and canonical; expiry and revocation are the caller's to judge. A
   * remembered one is answered at once; an opaque one that is new is looked up in the store, which may throw a `Fault`.
   */
  readAccess(token: string, now: Epoch): Bearer | undefined | Promise<Bearer | undefined>;
  /** The same without asking the store: enough to end a grant even while the store is away. */
  openAccess(token: string, now: Epoch): AccessHandle | undefined | Promise<AccessHandle | undefined>;
}
