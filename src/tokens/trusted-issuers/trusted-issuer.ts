import { hash } from 'node:crypto';
import { JOSEError } from 'jose/errors';
import type { Epoch, VerifiedToken } from '../../domain/grant.ts';
import { type RejectedToken, type RejectionFault, reject, rejectAuthentic } from '../../domain/token-rejection.ts';
import { omitUndefined } from '../../lib/omit-undefined.ts';
import type { Json, JsonObject } from '../../lib/strict-json.ts';
import { type ClaimRules, findClaimFault, readConfirmation } from '../access-token.ts';
import { type DecodedToken, decodeToken, isSignatureAlgorithm, type SignatureAlgorithm } from '../jwt.ts';
import { isOpaqueToken } from '../opaque-token.ts';
import {
  type ClaimMapping,
  isTrustedClaim,
  mapProfile,
  mapScope,
  readTrustedClaim,
  readTrustedText,
  type ScopeMapping,
} from './claim-mapping.ts';
import type { GetClientAddress, TokenIntrospection } from './introspection.ts';
import type { IssuerKeys } from './issuer-keys.ts';
import type { IssuerKey } from './key-set.ts';
import { isIdToken, isLogoutToken, LOGOUT_TOKEN_TYPES, MAX_LOGOUT_TOKEN_AGE, readLogoutClaims } from './token-kinds.ts';

interface LogoutOptions {
  /** At least one must be in `aud` of a logout token: the client id at the issuer. */
  readonly audience: readonly string[];
  /** Seconds for which a logout is remembered. No access token is accepted for longer. */
  readonly tokenLifetime: number;
}

interface IntrospectionSource {
  readonly client: Pick<TokenIntrospection, 'read'>;
  /** How its opaque tokens begin. Undefined: all tokens that are not recognized are taken for its tokens. */
  readonly tokenPrefix?: string | undefined;
}

export interface TrustedIssuerOptions {
  /** The name in the configuration. */
  readonly name: string;
  /** The `iss` claim, compared exactly. */
  readonly issuer: string;
  /** At least one must be in `aud`. */
  readonly audience: readonly string[];
  readonly algorithms: readonly SignatureAlgorithm[];
  /** Accepted values of `typ`, in lower case and without `application/`; undefined: the token has no `typ`. */
  readonly tokenTypes: ReadonlySet<string | undefined>;
  /** Seconds by which the clock of the issuer may differ. */
  readonly clockTolerance: number;
  /** Claims that a token must have, and the value if it must be this one. */
  readonly requiredClaims: ReadonlyMap<string, string | undefined>;
  /** The part of identities before the colon. */
  readonly label: string;
  readonly claims: ClaimMapping;
  readonly scope: ScopeMapping;
  readonly keys: Pick<IssuerKeys, 'find' | 'has' | 'isUsable'>;
  /** If undefined, its logout tokens are not accepted. */
  readonly logout?: LogoutOptions | undefined;
  /** If undefined, its opaque tokens are not accepted. */
  readonly introspection?: IntrospectionSource | undefined;
}

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

interface SignatureHeader {
  readonly kid: string | undefined;
  readonly alg: SignatureAlgorithm;
}

export type TokenReading = VerifiedToken | RejectedToken;

/** In place of the id of a key. */
const INTROSPECTED = 'introspected';

const isAbsentOr = (value: Json | undefined, pattern: RegExp): boolean =>
  value === undefined || (typeof value === 'string' && pattern.test(value));

/** Longer than the opaque tokens of any provider. */
const MAX_OPAQUE_LENGTH = 2_048;

/**
 * A signed JWT, or a refresh token or another credential of gatehouse: not to be sent to another issuer. A signed JWT has three parts; one
 * in 262,144 random tokens begins with the same letters. A token with five parts is encrypted (RFC 7516 §7.1): only its issuer can
 * read it.
 */
const OTHER_CREDENTIAL = /^(?:eyJ[^.]*\.(?!(?:[^.]*\.){3}[^.]*$)|gh[a-z]_)/;

/** Verifies the access tokens of one issuer and maps their claims (RFC 8725, RFC 9068 §4). */
export class TrustedIssuer {
  readonly name: string;
  readonly issuer: string;
  readonly #options: TrustedIssuerOptions;
  readonly #accessTokenRules: ClaimRules;
  readonly #logoutTokenRules: ClaimRules;

  constructor(options: TrustedIssuerOptions) {
    const { name, issuer, audience, clockTolerance, requiredClaims, logout } = options;
    this.name = name;
    this.issuer = issuer;
    this.#options = options;
    this.#accessTokenRules = {
      issuer,
      audience,
      required: ['iss', 'aud', ...[...requiredClaims.keys()].toReversed(), 'iat', 'exp'],
      clockTolerance,
    };
    this.#logoutTokenRules = {
      issuer,
      audience: logout?.audience ?? [],
      required: ['iss', 'aud', 'iat', 'exp', 'jti'],
      clockTolerance,
      maxAge: MAX_LOGOUT_TOKEN_AGE,
    };
  }

  /** Is the key that verified a token still valid? */
  hasKey(keyId: string): boolean {
    if (keyId === INTROSPECTED) return this.#options.introspection !== undefined;
    return this.#options.keys.has(keyId);
  }

  /** Rejected by its header before any key is looked up, or the function that completes the verification. */
  prepare(
    token: string,
    decoded: DecodedToken,
    now: Epoch,
    acceptsIdTokens: boolean,
  ): (() => Promise<TokenReading>) | RejectedToken {
    const signature = this.#readHeader(decoded, this.#options.tokenTypes);
    if (typeof signature === 'string') return this.#reject(signature);
    // A logout token without a type of its own looks like an access token.
    if (isLogoutToken(decoded.claims)) return this.#reject('logout_token');
    const { header, claims } = decoded;
    if (!acceptsIdTokens && isIdToken(header, claims)) return this.#reject('id_token');
    return () =>
      this.#verify(
        token,
        signature,
        claims,
        this.#accessTokenRules,
        now,
        ({ id }) => this.#findClaimMismatch(claims) ?? this.#map(claims, id),
      );
  }

  /** A claim of a verified token. */
  readClaim(claims: JsonObject, path: string): Json | undefined {
    return readTrustedClaim(claims, path, this.#options.claims);
  }

  get introspects(): boolean {
    return this.#options.introspection !== undefined;
  }

  /** Could this be an opaque token of the issuer? Others are never sent to it. */
  mayIntrospect(token: string): boolean {
    const { introspection } = this.#options;
    if (introspection === undefined || token.length > MAX_OPAQUE_LENGTH || OTHER_CREDENTIAL.test(token)) return false;
    const { tokenPrefix } = introspection;
    // White space before the first name of its header changes how a JWT begins.
    if (decodeToken(token) !== undefined) return false;
    return tokenPrefix === undefined ? !isOpaqueToken(token) : token.startsWith(tokenPrefix);
  }

  /** Throws or rejects with a `Fault` if the issuer cannot be asked. */
  introspect(
    token: string,
    now: Epoch,
    getClientAddress?: GetClientAddress,
  ): TokenReading | undefined | Promise<TokenReading | undefined> {
    return this.#options.introspection?.client.read(
      token,
      now,
      (claims, at) => this.#readIntrospection(claims, at),
      getClientAddress,
    );
  }

  /** RFC 7662 §2.2, with the same checks as for a JWT. */
  #readIntrospection(claims: JsonObject, now: Epoch): TokenReading {
    const { issuer, audience, clockTolerance, requiredClaims } = this.#options;
    const { iss, aud, iat, exp, nbf, token_type: tokenType, typ } = claims;
    if (claims['active'] !== true) return this.#reject('inactive');
    if (iss !== undefined && iss !== issuer) return this.#reject('claim_mismatch', 'iss');
    if (![aud ?? []].flat().some((value) => typeof value === 'string' && audience.includes(value)))
      return this.#reject('wrong_audience');
    // A refresh token can be active, too.
    if (!isAbsentOr(tokenType, /^(?:bearer|dpop)$/i) || !isAbsentOr(typ, /^(?:bearer|at\+jwt|jwt)$/i))
      return this.#reject('type_not_accepted');
    if (!Number.isFinite(iat)) return this.#reject('claim_missing', 'iat');
    if (!Number.isFinite(exp)) return this.#reject('claim_missing', 'exp');
    if (nbf !== undefined && !(Number(nbf) <= now + clockTolerance)) return this.#reject('not_yet_valid');
    for (const name of requiredClaims.keys())
      if (claims[name] === undefined) return this.#reject('claim_missing', name);
    const mismatch = this.#findClaimMismatch(claims);
    if (mismatch !== undefined) return mismatch;
    const verified = this.#map(claims, INTROSPECTED);
    // RFC 9449 §5: a token of this type is bound to a key.
    const isDpopToken = typeof tokenType === 'string' && /^dpop$/i.test(tokenType);
    return isDpopToken && verified.rejection === undefined && verified.proofKey === undefined
      ? this.#reject('claim_missing', 'cnf')
      : verified;
  }

  #reject(fault: RejectionFault, claim?: string): RejectedToken {
    return reject(fault, this.name, claim);
  }

  #findClaimMismatch(claims: JsonObject): RejectedToken | undefined {
    const { requiredClaims, claims: mapping } = this.#options;
    for (const [name, value] of requiredClaims)
      if (!isTrustedClaim(claims, name, mapping) || (value !== undefined && claims[name] !== value))
        return this.#reject('claim_mismatch', name);
    return undefined;
  }

  get acceptsLogout(): boolean {
    return this.#options.logout !== undefined;
  }

  /** Returns undefined unless the token is valid for this issuer (OpenID Connect Back-Channel Logout 1.0 §2.6). */
  async readLogoutToken(token: string, decoded: DecodedToken, now: Epoch): Promise<LogoutRequest | RejectedToken> {
    const { name, label, logout, claims: mapping, clockTolerance } = this.#options;
    if (logout === undefined) return this.#reject('logout_not_accepted');
    const signature = this.#readHeader(decoded, LOGOUT_TOKEN_TYPES);
    if (typeof signature === 'string') return this.#reject(signature);
    const { claims } = decoded;
    const found = await this.#verify(token, signature, claims, this.#logoutTokenRules, now, () => {
      const read = readLogoutClaims(claims, mapping.identity);
      return 'subject' in read ? read : this.#reject(...read);
    });
    if ('rejection' in found) return found;
    const { subject, session } = found;
    return {
      issuer: name,
      ...(subject !== undefined && { identity: `${label}:${subject}` }),
      ...(session !== undefined && { sessionId: deriveTokenId(name, `sid ${session}`) }),
      tokenLifetime: logout.tokenLifetime + 2 * clockTolerance,
    };
  }

  #readHeader({ header }: DecodedToken, types: ReadonlySet<string | undefined>): SignatureHeader | RejectionFault {
    const { alg, typ, kid, crit } = header;
    // Keys in the header (`jwk`, `jku`, `x5c`, `x5u`) are not used, and extensions are not supported.
    if (crit !== undefined || (kid !== undefined && typeof kid !== 'string')) return 'header_not_accepted';
    if (!isSignatureAlgorithm(alg) || !this.#options.algorithms.includes(alg)) return 'algorithm_not_allowed';
    const type = typeof typ === 'string' ? typ.toLowerCase().replace(/^application\//, '') : typ;
    if ((type !== undefined && typeof type !== 'string') || !types.has(type)) return 'type_not_accepted';
    return { kid, alg };
  }

  /** Verifies the signature and then the claims. `read` gets the key that verified the token. */
  async #verify<T>(
    token: string,
    { kid, alg }: SignatureHeader,
    claims: JsonObject,
    rules: ClaimRules,
    now: Epoch,
    read: (key: IssuerKey) => T,
  ): Promise<T | RejectedToken> {
    // Both are synchronous as soon as the keys are known.
    const { keys } = this.#options;
    const found = keys.find(kid, alg);
    const key = found instanceof Promise ? await found : found;
    if (key === undefined) return this.#reject(keys.isUsable ? 'unknown_key' : 'no_usable_key');
    try {
      const imported = key.import(alg);
      const verificationKey = imported instanceof Promise ? await imported : imported;
      if (!(await verificationKey.verify(token))) return this.#reject('invalid_signature');
    } catch (error) {
      if (error instanceof JOSEError || error instanceof TypeError) return this.#reject('malformed');
      throw error;
    }
    const fault = findClaimFault(claims, rules, now);
    if (fault === undefined) return read(key);
    const [reason, claim] = fault;
    return rejectAuthentic(reason, this.name, claim);
  }

  #readClientId(claims: JsonObject): string | undefined {
    const { claims: mapping } = this.#options;
    for (const path of mapping.clientId) {
      const id = readTrustedText(claims, path, mapping);
      if (id !== undefined) return id;
    }
    return undefined;
  }

  #map(claims: JsonObject, keyId: string): TokenReading {
    const { name, label, clockTolerance, claims: mapping, scope, logout } = this.#options;
    const subject = readTrustedText(claims, mapping.identity, mapping);
    const clientId = this.#readClientId(claims);
    const binding = readConfirmation(claims['cnf']);
    if (subject === undefined) return this.#reject('claim_missing', mapping.identity);
    if (binding === undefined) return this.#reject('binding_not_supported');
    const profile = mapProfile(claims, mapping);
    const { jti, sub, iat, exp, aud } = claims;
    // A logout is remembered for this long.
    const latest = logout === undefined ? Number.POSITIVE_INFINITY : Number(iat) + logout.tokenLifetime;
    const session = logout === undefined ? undefined : claims['sid'];
    const tokenId = typeof jti === 'string' ? `jti ${jti}` : `sub ${typeof sub === 'string' ? sub : subject}`;
    return {
      issuer: name,
      grantId: deriveTokenId(name, tokenId),
      generation: 0,
      clientId: `${name}/${clientId ?? ''}`,
      identity: `${label}:${subject}`,
      scope: mapScope(claims, mapping, scope),
      // A clock that is ahead must not let a token survive a revocation.
      issuedAt: Number(iat) - clockTolerance,
      expires: Math.min(Number(exp), latest) + clockTolerance,
      keyId,
      audience: listAudiences(aud),
      ...(typeof session === 'string' && { sessionId: deriveTokenId(name, `sid ${session}`) }),
      ...omitUndefined({ profile }),
      ...binding,
    };
  }
}

const listAudiences = (aud: Json | undefined): readonly string[] =>
  [aud ?? []].flat().filter((value) => typeof value === 'string' && value !== '') as readonly string[];

/**
 * The id under which a token is revoked, in the form of a grant id. It is made from what the issuer states, never from the
 * bytes of the token: an ECDSA signature can be altered and stay valid.
 */
export const deriveTokenId = (issuer: string, tokenId: string): string =>
  hash('sha256', `${issuer} ${tokenId}`, 'base64url').slice(0, 22);
