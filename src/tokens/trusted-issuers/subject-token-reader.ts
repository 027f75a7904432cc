import type { Epoch } from '../../domain/epoch.ts';
import { type RejectedToken, reject } from '../../domain/token-rejection.ts';
import type { VerifiedToken } from '../../domain/verified-token.ts';
import type { Json } from '../../lib/strict-json.ts';
import { decodeToken } from '../jwt.ts';
import type { TrustedIssuers } from './trusted-issuers.ts';

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

/** Verifies tokens of trusted issuers that are presented for exchange, by the same rules as on routes. ID tokens may be exchanged. */
export const createSubjectTokenReader = (issuers: TrustedIssuers) => ({
  /** Returns undefined if it is not a JWT. Throws a `Fault` if the keys of the issuer are not available. */
  async read(token: string, type: SubjectTokenType, now: Epoch): Promise<SubjectToken | RejectedToken | undefined> {
    const verify = issuers.prepare(token, now, true);
    const verified = typeof verify === 'function' ? await verify() : verify;
    if (verified === undefined || verified.rejection !== undefined) return verified;
    const decoded = decodeToken(token);
    const { identity, issuer } = verified;
    if (issuer === undefined || decoded === undefined) return undefined;
    if (!isOfType(decoded.header['typ'], type)) return reject('type_not_accepted', issuer);
    const { jti } = decoded.claims;
    return {
      verified,
      issuer,
      subject: identity.slice(identity.indexOf(':') + 1),
      ...(typeof jti === 'string' && jti !== '' && { tokenId: jti }),
      readClaim: (path) => issuers.readClaim(issuer, decoded.claims, path),
    };
  },
});

export type SubjectTokenReader = ReturnType<typeof createSubjectTokenReader>;

/** RFC 9068 §2.1: the only declared type that contradicts the header. Most issuers use `JWT` for all their tokens. */
const isOfType = (typ: Json | undefined, type: SubjectTokenType): boolean =>
  !(type === 'id_token' && typeof typ === 'string' && /^(?:application\/)?at\+jwt$/i.test(typ));
