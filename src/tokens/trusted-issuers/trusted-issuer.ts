import { hash } from 'node:crypto';
import { JOSEError } from 'jose/errors';
import { jwtVerify } from 'jose/jwt/verify';
import type { Epoch } from '../../domain/epoch.ts';
import type { VerifiedToken } from '../../domain/verified-token.ts';
import { isJsonObject, type JsonObject, parseStrictJson } from '../../lib/strict-json.ts';
import { isCanonicalBase64url } from '../base64url.ts';
import { readConfirmation } from '../confirmation.ts';
import { type ClaimMapping, mapProfile, mapScope, readText, type ScopeMapping } from './claim-mapping.ts';
import type { IssuerKeys } from './issuer-keys.ts';
import { isSignatureAlgorithm, type SignatureAlgorithm } from './key-set.ts';

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
  readonly keys: Pick<IssuerKeys, 'find' | 'has'>;
}

/** A token whose form is valid and whose signature has not been verified. */
export interface DecodedToken {
  readonly header: JsonObject;
  readonly claims: JsonObject;
}

/** Undefined: not a JWT in compact serialization with unambiguous JSON (RFC 7515 §7.1, RFC 8725 §2.4). */
export function decodeToken(token: string): DecodedToken | undefined {
  const [header = '', payload = '', signature = '', ...rest] = token.split('.', 4);
  if (rest.length > 0 || ![header, payload, signature].every(isCanonicalBase64url)) return undefined;
  try {
    const [decodedHeader, claims] = [header, payload].map((part) =>
      parseStrictJson(new TextDecoder('utf-8', { fatal: true }).decode(Buffer.from(part, 'base64url'))),
    );
    if (decodedHeader === undefined || claims === undefined) return undefined;
    return isJsonObject(decodedHeader) && isJsonObject(claims)
      ? { header: decodedHeader, claims }
      : undefined;
  } catch {
    return undefined;
  }
}

/** Verifies the access tokens of one issuer and maps their claims (RFC 8725, RFC 9068 §4). */
export class TrustedIssuer {
  readonly name: string;
  readonly issuer: string;
  readonly #options: TrustedIssuerOptions;

  constructor(options: TrustedIssuerOptions) {
    this.name = options.name;
    this.issuer = options.issuer;
    this.#options = options;
  }

  /** Is the key that verified a token still valid? */
  hasKey(keyId: string): boolean {
    return this.#options.keys.has(keyId);
  }

  /** Undefined: rejected by its header, before any key is looked up. */
  prepare(
    token: string,
    decoded: DecodedToken,
    now: Epoch,
  ): (() => Promise<VerifiedToken | undefined>) | undefined {
    const { alg, typ, kid, crit } = decoded.header;
    // Keys in the header (`jwk`, `jku`, `x5c`, `x5u`) are not used, and extensions are not supported.
    if (crit !== undefined || !isSignatureAlgorithm(alg) || !this.#options.algorithms.includes(alg))
      return undefined;
    if (kid !== undefined && typeof kid !== 'string') return undefined;
    const type = typeof typ === 'string' ? typ.toLowerCase().replace(/^application\//, '') : typ;
    if ((type !== undefined && typeof type !== 'string') || !this.#options.tokenTypes.has(type))
      return undefined;
    return () => this.#verify(token, decoded.claims, kid, alg, now);
  }

  async #verify(
    token: string,
    claims: JsonObject,
    kid: string | undefined,
    alg: SignatureAlgorithm,
    now: Epoch,
  ): Promise<VerifiedToken | undefined> {
    const { issuer, audience, clockTolerance, requiredClaims, keys } = this.#options;
    const key = await keys.find(kid, alg);
    if (key === undefined) return undefined;
    try {
      await jwtVerify(token, await key.import(alg), {
        algorithms: [alg],
        issuer,
        audience: [...audience],
        clockTolerance,
        requiredClaims: ['exp', 'iat', ...requiredClaims.keys()],
        currentDate: new Date(now * 1_000),
      });
    } catch (error) {
      if (error instanceof JOSEError || error instanceof TypeError) return undefined;
      throw error;
    }
    for (const [name, value] of requiredClaims)
      if (value !== undefined && claims[name] !== value) return undefined;
    return this.#map(claims, key.id);
  }

  #map(claims: JsonObject, keyId: string): VerifiedToken | undefined {
    const { name, label, clockTolerance, claims: mapping, scope } = this.#options;
    const subject = readText(claims, mapping.identity);
    const clientId = mapping.clientId.map((path) => readText(claims, path)).find((id) => id !== undefined);
    const binding = readConfirmation(claims['cnf']);
    if (subject === undefined || binding === undefined) return undefined;
    const profile = mapProfile(claims, mapping);
    const { jti, sub, iat, exp, aud } = claims;
    const tokenId = typeof jti === 'string' ? `jti ${jti}` : `sub ${typeof sub === 'string' ? sub : subject}`;
    return {
      issuer: name,
      grantId: deriveTokenId(name, tokenId),
      generation: 0,
      clientId: `${name}/${clientId ?? ''}`,
      identity: `${label}:${subject}`,
      scope: mapScope(claims, mapping.scope, scope),
      // A clock that is ahead must not let a token survive a revocation.
      issuedAt: Number(iat) - clockTolerance,
      expires: Number(exp) + clockTolerance,
      keyId,
      audience: [aud ?? []].flat().filter((value) => typeof value === 'string'),
      ...(profile !== undefined && { profile }),
      ...binding,
    };
  }
}

/**
 * The id under which a token is revoked, in the form of a grant id. It is made from what the issuer states, never from the
 * bytes of the token: an ECDSA signature can be altered and stay valid.
 */
export const deriveTokenId = (issuer: string, tokenId: string): string =>
  hash('sha256', `${issuer} ${tokenId}`, 'base64url').slice(0, 22);
