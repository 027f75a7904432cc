import type { Epoch } from './epoch.ts';
import type { Scope } from './scope.ts';

/** What an authentic access token says. Whether it still counts is asked on every use. */
export interface Bearer {
  readonly grantId: string;
  readonly generation: number;
  readonly clientId: string;
  readonly identity: string;
  readonly scope: Scope;
  readonly issuedAt: Epoch;
  readonly expires: Epoch;
  /** SHA-256 of the certificate it is bound to (RFC 8705 `cnf`), when it is. */
  readonly boundTo?: string;
  /** The key it was made with, which may be retired while the token is remembered. */
  readonly keyId: string;
}
