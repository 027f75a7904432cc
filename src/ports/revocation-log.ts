import type { Epoch } from '../domain/epoch.ts';
import type { VerifiedToken } from '../domain/verified-token.ts';

/**
 * Revokes the tokens of a grant below a generation (`Infinity`: all of them), or the tokens of a client, an identity or a
 * trusted issuer that were issued before a time. Revocations only become stricter, so replicas can merge them in any order.
 */
export type Revocation = { readonly keepUntil: Epoch } & (
  | { readonly of: 'grant'; readonly grantId: string; readonly belowGeneration: number }
  | { readonly of: 'client'; readonly clientId: string; readonly notBefore: Epoch }
  | { readonly of: 'identity'; readonly identity: string; readonly notBefore: Epoch }
  | { readonly of: 'issuer'; readonly issuer: string; readonly notBefore: Epoch }
);

export type RevocationSubject = Pick<
  VerifiedToken,
  'grantId' | 'generation' | 'clientId' | 'identity' | 'issuedAt' | 'issuer' | 'sessionId' | 'exchangedFrom'
>;

export interface RevocationLog {
  /** When this resolves, no worker or replica that can reach the store accepts the tokens any more. */
  announce(revocation: Revocation): Promise<void>;
  /** Synchronous and local: called for every request. */
  isRevoked(subject: RevocationSubject): boolean;
}
