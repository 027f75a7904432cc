import type { Epoch, VerifiedToken } from '../../domain/grant.ts';
import { type RejectedToken, reject } from '../../domain/token-rejection.ts';
import type { Json, JsonObject } from '../../lib/strict-json.ts';
import { type DecodedToken, decodeToken } from '../jwt.ts';
import { createTokenCache, TOKEN_CACHE_SIZE } from '../token-cache.ts';
import type { GetClientAddress } from './introspection.ts';
import type { LogoutRequest, TokenReading, TrustedIssuer } from './trusted-issuer.ts';

/** Identity providers put groups and roles into their tokens. */
const MAX_LENGTH = 16_384;

const UNKNOWN_ISSUER = reject('unknown_issuer');

/** The issuers whose tokens are accepted beside those of gatehouse. */
export class TrustedIssuers {
  readonly #byIssuer: ReadonlyMap<string, TrustedIssuer>;
  readonly #byName: ReadonlyMap<string, TrustedIssuer>;
  readonly #introspecting: readonly TrustedIssuer[];

  constructor(issuers: readonly TrustedIssuer[]) {
    this.#byIssuer = new Map(issuers.map((issuer) => [issuer.issuer, issuer]));
    this.#introspecting = issuers.filter(({ introspects }) => introspects);
    this.#byName = new Map(issuers.map((issuer) => [issuer.name, issuer]));
  }

  /** Is the key that verified a cached token still valid? */
  hasKey({ issuer, keyId }: VerifiedToken): boolean {
    return this.#byName.get(issuer ?? '')?.hasKey(keyId) === true;
  }

  /** A claim of a verified token of this issuer. */
  readClaim(issuer: string, claims: JsonObject, path: string): Json | undefined {
    return this.#byName.get(issuer)?.readClaim(claims, path);
  }

  get introspects(): boolean {
    return this.#introspecting.length > 0;
  }

  /** Asks the issuer about an opaque token, if the route accepts its tokens (`accepted`: names of issuers). */
  introspect(
    token: string,
    now: Epoch,
    accepted: ReadonlySet<string> | undefined,
    getClientAddress?: GetClientAddress,
  ): TokenReading | undefined | Promise<TokenReading | undefined> {
    if (accepted === undefined) return undefined;
    // The configuration ensures that there is at most one.
    const issuer = this.#introspecting.find((candidate) => candidate.mayIntrospect(token));
    return issuer !== undefined && accepted.has(issuer.name)
      ? issuer.introspect(token, now, getClientAddress)
      : undefined;
  }

  get acceptsLogout(): boolean {
    return [...this.#byIssuer.values()].some(({ acceptsLogout }) => acceptsLogout);
  }

  /** Throws a `Fault` if the keys of the issuer are not available. */
  async readLogoutToken(token: string, now: Epoch): Promise<LogoutRequest | RejectedToken> {
    const decoded = token.length > MAX_LENGTH ? undefined : decodeToken(token);
    if (decoded === undefined) return reject('malformed');
    return this.#findIssuer(decoded)?.readLogoutToken(token, decoded, now) ?? UNKNOWN_ISSUER;
  }

  /** The function completes the verification. Undefined: not a JWT. Otherwise rejected by its issuer or its header. */
  prepare(
    token: string,
    now: Epoch,
    acceptsIdTokens = false,
  ): (() => Promise<TokenReading>) | RejectedToken | undefined {
    const decoded = token.length > MAX_LENGTH ? undefined : decodeToken(token);
    if (decoded === undefined) return undefined;
    return this.#findIssuer(decoded)?.prepare(token, decoded, now, acceptsIdTokens) ?? UNKNOWN_ISSUER;
  }

  /** `iss` is not verified yet: it only selects the issuer, whose keys and name the token must then match. */
  #findIssuer({ claims: { iss } }: DecodedToken): TrustedIssuer | undefined {
    return typeof iss === 'string' ? this.#byIssuer.get(iss) : undefined;
  }
}

/** Undefined where no issuer may send logout tokens. */
export const createLogoutTokenReader = (issuers: TrustedIssuers) =>
  issuers.acceptsLogout ? { read: (token: string, now: Epoch) => issuers.readLogoutToken(token, now) } : undefined;

export type LogoutTokenReader = NonNullable<ReturnType<typeof createLogoutTokenReader>>;

/** Verifies and caches the tokens of trusted issuers. */
export const createTrustedTokenReader = (issuers: TrustedIssuers, cacheSize = TOKEN_CACHE_SIZE) =>
  createTokenCache<RejectedToken>({
    cacheSize,
    isAcceptedKey: (token) => issuers.hasKey(token),
    prepare: (token, now) => issuers.prepare(token, now),
  });

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
  /** Reads a claim by its name, or by a JSON pointer. */
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
