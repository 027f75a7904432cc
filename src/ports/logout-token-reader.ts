import type { Epoch } from '../domain/epoch.ts';
import type { RejectedToken } from '../domain/token-rejection.ts';

/** What an authentic logout token revokes: a subject, a session, or both. */
export interface LogoutRequest {
  /** The configured name of the issuer. */
  readonly issuer: string;
  readonly identity?: string;
  /** The id under which the tokens of the session are revoked. */
  readonly sessionId?: string;
  /** Seconds after which no token of the issuer that exists now is valid. */
  readonly tokenLifetime: number;
}

/** Verifies logout tokens of trusted issuers. Throws a `Fault` if the keys of the issuer are not available. */
export interface LogoutTokenReader {
  /** Rejected: not a valid logout token of an issuer whose logouts are accepted. */
  read(token: string, now: Epoch): Promise<LogoutRequest | RejectedToken>;
}
