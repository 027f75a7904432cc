import type { Epoch } from '../domain/epoch.ts';
import type { VerifiedToken } from '../domain/verified-token.ts';

/**
 * Revokes the tokens of a grant below a generation (`Infinity`: all of them), or the tokens issued so far of a client, an identity or a
 * trusted issuer. Revocations only become stricter, so replicas can merge them in any order.
 */
export type Revocation = { readonly keepUntil: Epoch } & (
  | { readonly of: 'grant'; readonly grantId: string; readonly belowGeneration: number }
  | (BulkRevocation & { readonly of: 'client'; readonly clientId: string })
  | (BulkRevocation & { readonly of: 'identity'; readonly identity: string })
  | (BulkRevocation & { readonly of: 'issuer'; readonly issuer: string })
);

interface BulkRevocation {
  /** Revokes gatehouse's tokens with a lower `issuedAfter`. Assigned by the store if omitted; later revocations have higher numbers. */
  readonly number?: number;
  /** Revokes tokens of trusted issuers with an earlier `issuedAt`. */
  readonly notBefore: Epoch;
}

export type RevocationSubject = Pick<
  VerifiedToken,
  | 'grantId'
  | 'generation'
  | 'clientId'
  | 'identity'
  | 'issuedAt'
  | 'issuedAfter'
  | 'issuer'
  | 'sessionId'
  | 'exchangedFrom'
>;

export interface RevocationLog {
  /**
   * When this resolves, no worker or replica that can reach the store accepts the tokens any more, and what they issue for requests that
   * arrive from now on is valid.
   */
  announce(revocation: Revocation): Promise<void>;
  /** Synchronous and local: called for every request. */
  isRevoked(subject: RevocationSubject): boolean;
  /**
   * The highest number such that this process has applied all revocations up to it; 0: none. Read before the first check of a request, it is
   * the `issuedAfter` of what the request obtains: a revocation that the checks did not see has a higher number.
   */
  getLastNumber(): number;
}
