import type { Epoch } from '../domain/epoch.ts';
import type { RejectedToken } from '../domain/token-rejection.ts';
import type { VerifiedToken } from '../domain/verified-token.ts';

/** The token types of RFC 8693 §3 that can be exchanged. */
export const SUBJECT_TOKEN_TYPES = ['jwt', 'access_token', 'id_token'] as const;
export type SubjectTokenType = (typeof SUBJECT_TOKEN_TYPES)[number];

/** An authentic token of a trusted issuer. Whether it is still valid is checked by the caller. */
export interface SubjectToken {
  readonly verified: VerifiedToken;
  /** The configured name of the issuer. */
  readonly issuer: string;
  /** The identity without its label. */
  readonly subject: string;
  /** `jti`, if the token has one. */
  readonly tokenId?: string;
  /** By name, or by a JSON pointer. */
  readonly readClaim: (path: string) => unknown;
}

/** Verifies tokens that are presented for exchange. Throws a `Fault` if the keys of the issuer are not available. */
export interface SubjectTokenReader {
  /** Undefined: not a JWT. */
  read(token: string, type: SubjectTokenType, now: Epoch): Promise<SubjectToken | RejectedToken | undefined>;
}
