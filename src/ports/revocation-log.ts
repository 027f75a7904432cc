import type { Bearer } from '../domain/bearer.ts';
import type { Epoch } from '../domain/epoch.ts';

/** Entries only ever grow stricter, so replicas can merge them in any order. */
export type Revocation =
  /** Tokens of this grant below this generation are dead; `Infinity` ends the grant. */
  | {
      readonly of: 'grant';
      readonly grantId: string;
      readonly belowGeneration: number;
      readonly keepUntil: Epoch;
    }
  /** Every token of this client, or of this identity, issued before that time is dead. */
  | { readonly of: 'client'; readonly clientId: string; readonly notBefore: Epoch; readonly keepUntil: Epoch }
  | {
      readonly of: 'identity';
      readonly identity: string;
      readonly notBefore: Epoch;
      readonly keepUntil: Epoch;
    };

/** What was revoked, known without a network call wherever tokens are checked. */
export interface RevocationLog {
  /** When this resolves, no worker or replica that can reach the store accepts the tokens any more. */
  announce(revocation: Revocation): Promise<void>;
  isRevoked(bearer: Pick<Bearer, 'grantId' | 'generation' | 'clientId' | 'identity' | 'issuedAt'>): boolean;
}
