import { reject } from '../../domain/token-rejection.ts';
import type { Json } from '../../lib/strict-json.ts';
import type { SubjectTokenReader, SubjectTokenType } from '../../ports/subject-token-reader.ts';
import { decodeToken } from '../decode-token.ts';
import type { TrustedIssuers } from './trusted-issuers.ts';

/** Verifies tokens of trusted issuers that are presented for exchange, by the same rules as on routes. ID tokens may be exchanged. */
export const createSubjectTokenReader = (issuers: TrustedIssuers): SubjectTokenReader => ({
  async read(token, type, now) {
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

/** RFC 9068 §2.1: the only declared type that contradicts the header. Most issuers use `JWT` for all their tokens. */
const isOfType = (typ: Json | undefined, type: SubjectTokenType): boolean =>
  !(type === 'id_token' && typeof typ === 'string' && /^(?:application\/)?at\+jwt$/i.test(typ));
