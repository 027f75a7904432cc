import { hash } from 'node:crypto';
import { calculateJwkThumbprint } from 'jose/jwk/thumbprint';
import { importJWK } from 'jose/key/import';
import type { Epoch } from '../domain/epoch.ts';
import { normalizeAuthority, parseTarget } from '../domain/request-target.ts';
import { isEqualConstantTime } from '../lib/constant-time.ts';
import { isJsonObject, type Json, type JsonObject } from '../lib/strict-json.ts';
import { TwoGenerationCache } from '../lib/two-generation-cache.ts';
import type { ProofCheck, ProofRequest, ProofVerifier } from '../ports/proof-verifier.ts';
import { decodeToken } from './decode-token.ts';
import type { ProofMemory } from './proof-memory.ts';
import type { createProofNonces } from './proof-nonce.ts';
import { isSignatureAlgorithm, type SignatureAlgorithm, VerificationKey } from './signature.ts';

const MAX_LENGTH = 8_192;
const MAX_ID_LENGTH = 256;
/** Seconds by which the clock of a client may be ahead. */
const PROOF_CLOCK_TOLERANCE = 5;
/** How old a proof may be, by its `iat`; seconds. */
const PROOF_LIFETIME = 60;
/** Seconds for which a used proof is remembered. */
export const PROOF_WINDOW = PROOF_LIFETIME + PROOF_CLOCK_TOLERANCE;
/** Asymmetric only (RFC 9449 §4.3). */
export const PROOF_ALGORITHMS: readonly SignatureAlgorithm[] = ['ES256', 'ES384', 'EdDSA', 'Ed25519', 'PS256', 'RS256'];
const PROOF_TYPE = 'dpop+jwt';
/** RFC 7518 §6: members of private and symmetric keys. */
const PRIVATE_MEMBERS = ['d', 'p', 'q', 'dp', 'dq', 'qi', 'oth', 'k'] as const;
/** 4096 bits: verification with larger keys takes too long. */
const MAX_MODULUS_LENGTH = 683;
/** 65537 and smaller. */
const MAX_EXPONENT_LENGTH = 4;
/** Clients use one key for many proofs, so that the first part of the proof, which contains it, repeats. */
const MAX_CACHED_KEYS = 1_000;

interface ProofVerifierOptions {
  readonly memory: ProofMemory;
  /** If omitted, proofs need no nonce. */
  readonly nonces?: ReturnType<typeof createProofNonces> | undefined;
}

interface ProofKey {
  readonly key: VerificationKey;
  readonly thumbprint: string;
}

const fail = (detail: string): ProofCheck => ({ ok: false, detail });

/** RFC 9449 §4.3. */
export function createProofVerifier({ memory, nonces }: ProofVerifierOptions): ProofVerifier {
  const keys = new TwoGenerationCache<ProofKey>(MAX_CACHED_KEYS, MAX_LENGTH);

  const findKey = async (
    encodedHeader: string,
    header: JsonObject,
    alg: SignatureAlgorithm,
  ): Promise<ProofKey | undefined> => keys.get(encodedHeader) ?? (await readKey(header, alg));

  return {
    algorithms: PROOF_ALGORITHMS,
    async verify({ proofs, method, origin, path, bound, now }) {
      const [proof, ...others] = proofs;
      if (proof === undefined) return fail('there is none');
      if (others.length > 0) return fail('there are several');
      const decoded = proof.length > MAX_LENGTH ? undefined : decodeToken(proof);
      if (decoded === undefined) return fail('it is malformed');
      const { header, claims } = decoded;
      const { typ, alg, crit } = header;
      if (typ !== PROOF_TYPE || crit !== undefined) return fail('its type is not dpop+jwt');
      if (!isSignatureAlgorithm(alg) || !PROOF_ALGORITHMS.includes(alg)) return fail('its algorithm is not supported');
      // Compared before the signature is verified, which costs more.
      const fault = findClaimFault(claims, { method, origin, path, now });
      if (fault !== undefined) return fail(fault);
      const { jti, iat, ath, nonce } = claims;
      if (bound !== undefined && ath !== hash('sha256', bound.accessToken, 'base64url'))
        return fail('ath is not the hash of the access token');

      const encodedHeader = proof.slice(0, proof.indexOf('.'));
      const proofKey = await findKey(encodedHeader, header, alg);
      if (proofKey === undefined) return fail('jwk is not a public key for its algorithm');
      const { key, thumbprint } = proofKey;
      if (bound !== undefined && !isEqualConstantTime(thumbprint, bound.proofKey))
        return fail('it is not signed with the key that the access token is bound to');
      if (!(await key.verify(proof))) return fail('its signature is not valid');
      keys.set(encodedHeader, proofKey);

      if (nonces !== undefined && (typeof nonce !== 'string' || !nonces.accepts(nonce, now)))
        return { ok: false, nonce: nonces.create(now) };
      const proofId = jti as string;
      const issuedAt = iat as number;
      // Only the holder of a bound token can fill the memory.
      if (bound !== undefined && !memory.use(thumbprint, proofId, issuedAt, now, PROOF_WINDOW))
        return fail('it was used before');
      return { ok: true, proofKey: thumbprint, proofId, issuedAt };
    },
  };
}

type ClaimFacts = Pick<ProofRequest, 'method' | 'origin' | 'path' | 'now'>;

function findClaimFault(
  { jti, iat, htm, htu }: JsonObject,
  { method, origin, path, now }: ClaimFacts,
): string | undefined {
  if (typeof jti !== 'string' || jti === '' || jti.length > MAX_ID_LENGTH) return 'jti is missing or too long';
  if (htm !== method) return 'htm is not the method of the request';
  if (typeof htu !== 'string' || normalizeProofUrl(htu) !== `${normalizeOrigin(origin)}${path}`)
    return 'htu is not the URL of the request';
  if (!isTime(iat)) return 'iat is missing';
  if (iat > now + PROOF_CLOCK_TOLERANCE) return 'iat is in the future';
  return iat < now - PROOF_LIFETIME ? 'iat is too long ago' : undefined;
}

const isTime = (value: Json | undefined): value is Epoch => typeof value === 'number' && Number.isFinite(value);

const HTTP_URL = /^(https?):\/\/([^/?#\\]+)([^?#]*)/i;

/** RFC 9449 §4.3: without query and fragment, normalized as the request target is. Undefined: not an unambiguous URL. */
function normalizeProofUrl(url: string): string | undefined {
  const [, scheme = '', authority = '', rawPath = ''] = HTTP_URL.exec(url) ?? [];
  const parsed = parseTarget(rawPath === '' ? '/' : rawPath, {
    method: 'GET',
    isServedAuthority: () => false,
    encodedSlash: true,
  });
  return parsed.kind === 'target' ? `${normalizeOrigin(`${scheme}://${authority}`)}${parsed.target.path}` : undefined;
}

/** RFC 3986 §6.2: lower case, without the default port. */
function normalizeOrigin(origin: string): string {
  const lower = origin.toLowerCase();
  const [scheme = '', authority = ''] = lower.split('://', 2);
  return `${scheme}://${normalizeAuthority(authority, scheme)}`;
}

/** Returns undefined unless it is a public key for the algorithm of the header. */
async function readKey({ jwk }: JsonObject, alg: SignatureAlgorithm): Promise<ProofKey | undefined> {
  if (jwk === undefined || !isJsonObject(jwk) || PRIVATE_MEMBERS.some((name) => jwk[name] !== undefined))
    return undefined;
  const { kty, crv, x, y, n, e, alg: keyAlg } = jwk;
  if (keyAlg !== undefined && keyAlg !== alg) return undefined;
  if (kty === 'RSA' && !(isShort(n, MAX_MODULUS_LENGTH) && isShort(e, MAX_EXPONENT_LENGTH))) return undefined;
  const members = Object.entries({ kty, crv, x, y, n, e }).filter(([, value]) => value !== undefined);
  if (members.some(([, value]) => typeof value !== 'string')) return undefined;
  const publicJwk = Object.fromEntries(members) as Record<string, string>;
  try {
    const key = await importJWK(publicJwk, alg);
    // Symmetric keys are bytes.
    if (key instanceof Uint8Array) return undefined;
    return {
      key: new VerificationKey(alg, key),
      thumbprint: await calculateJwkThumbprint(publicJwk, 'sha256'),
    };
  } catch {
    return undefined;
  }
}

const isShort = (value: Json | undefined, maxLength: number): boolean =>
  typeof value === 'string' && value.length <= maxLength;
