import { JOSEError } from 'jose/errors';
import type { Epoch } from '../domain/grant.ts';
import type { Json } from '../lib/strict-json.ts';
import { findClaimFault } from './access-token.ts';
import { decodeToken, isSignatureAlgorithm } from './jwt.ts';
import type { IssuerKeys } from './trusted-issuers/issuer-keys.ts';

const MAX_LENGTH = 8_192;
const MAX_ID_LENGTH = 256;
/** Seconds. Its `jti` is remembered until it expires. */
const MAX_LIFETIME = 3_600;
/** Seconds by which the clock of a client may be ahead. */
const CLOCK_TOLERANCE = 30;
/** `exp` is compared below without tolerance. */
const CLAIM_RULES = { required: [], clockTolerance: CLOCK_TOLERANCE };
/** In lower case, without `application/`; undefined: no `typ`. Access tokens and other JWTs have their own. */
const TOKEN_TYPES: ReadonlySet<Json | undefined> = new Set([undefined, 'jwt', 'client-authentication+jwt']);

interface ClientAssertionsOptions {
  readonly keys: ReadonlyMap<string, Pick<IssuerKeys, 'find'>>;
  /** The issuer and the endpoints where clients authenticate, under each name that clients know. */
  readonly audiences: ReadonlySet<string>;
}

type AssertionCheck =
  | { readonly ok: true; readonly tokenId: string; readonly expires: Epoch }
  /** For operators. */
  | { readonly ok: false; readonly detail: string };

const fail = (detail: string): AssertionCheck => ({ ok: false, detail });

/** `private_key_jwt` (RFC 7523 §2.2 and §3, OpenID Connect Core §9). Whether an assertion is used twice is checked by the caller. */
export function createClientAssertions({ keys, audiences }: ClientAssertionsOptions) {
  return {
    /** The client that an assertion claims to be of, before anything is verified. */
    readClient(assertion: string): string | undefined {
      const sub = assertion.length > MAX_LENGTH ? undefined : decodeToken(assertion)?.claims['sub'];
      return typeof sub === 'string' && sub.length <= MAX_ID_LENGTH ? sub : undefined;
    },
    /** Throws a `Fault` if the keys of the client are not available. */
    async verify(clientId: string, assertion: string, now: Epoch): Promise<AssertionCheck> {
      const clientKeys = keys.get(clientId);
      const decoded = assertion.length > MAX_LENGTH ? undefined : decodeToken(assertion);
      if (clientKeys === undefined || decoded === undefined) return fail('malformed assertion');
      const { header, claims } = decoded;
      const { alg, kid, typ, crit } = header;
      const type = typeof typ === 'string' ? typ.toLowerCase().replace(/^application\//, '') : typ;
      if (crit !== undefined || !isSignatureAlgorithm(alg) || !TOKEN_TYPES.has(type)) return fail('unsupported header');
      if (kid !== undefined && typeof kid !== 'string') return fail('unsupported header');
      // Compared before the signature is verified, which costs more.
      if (claims['iss'] !== clientId || claims['sub'] !== clientId) return fail('iss and sub must be the client');
      // One value only: an assertion for another server must not be valid here as well.
      const [audience, ...others] = [claims['aud'] ?? []].flat();
      if (typeof audience !== 'string' || others.length > 0 || !audiences.has(audience))
        return fail('aud must be the issuer or an endpoint');
      const { jti, exp, iat } = claims;
      if (typeof jti !== 'string' || jti === '' || jti.length > MAX_ID_LENGTH) return fail('jti is required');
      if (typeof exp !== 'number' || exp > now + MAX_LIFETIME + CLOCK_TOLERANCE)
        return fail('exp must be at most one hour away');
      if (iat !== undefined && (typeof iat !== 'number' || iat > now + CLOCK_TOLERANCE))
        return fail('iat is in the future');
      const key = await clientKeys.find(kid, alg);
      if (key === undefined) return fail('unknown key');
      try {
        const verificationKey = await key.import(alg);
        if (!(await verificationKey.verify(assertion))) return fail('invalid signature');
      } catch (error) {
        if (error instanceof JOSEError || error instanceof TypeError) return fail('unusable key');
        throw error;
      }
      if (findClaimFault(claims, CLAIM_RULES, now) !== undefined) return fail('expired or not valid yet');
      return exp > now ? { ok: true, tokenId: jti, expires: exp } : fail('expired');
    },
  };
}

export type ClientAssertionVerifier = ReturnType<typeof createClientAssertions>;
