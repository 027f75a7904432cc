import { hash } from 'node:crypto';
import { calculateJwkThumbprint } from 'jose/jwk/thumbprint';
import { importJWK } from 'jose/key/import';
import type { Epoch } from '../domain/grant.ts';
import { normalizeAuthority, parseTarget } from '../domain/request-target.ts';
import { isEqualConstantTime } from '../lib/constant-time.ts';
import { isJsonObject, type Json, type JsonObject } from '../lib/strict-json.ts';
import { TwoGenerationCache } from '../lib/two-generation-cache.ts';
import { decodeToken, isSignatureAlgorithm, type SignatureAlgorithm, VerificationKey } from './jwt.ts';
import type { ProofMemory } from './proof-memory.ts';
import type { Sealer } from './sealer.ts';

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

/** What a DPoP proof (RFC 9449) is compared with. */
interface ProofRequest {
  /** The values of all DPoP fields of the request. */
  readonly proofs: readonly string[];
  readonly method: string;
  /** The scheme and authority of the request as the client sees it, without a path. */
  readonly origin: string;
  /** The canonical path of the request, without its query. */
  readonly path: string;
  /** Omitted at the token endpoint, where there is no token yet. */
  readonly bound?: { readonly accessToken: string; readonly proofKey: string };
  readonly now: Epoch;
}

export type ProofCheck =
  /** `proofKey`: the RFC 7638 thumbprint of its key. */
  | { readonly ok: true; readonly proofKey: string; readonly proofId: string; readonly issuedAt: Epoch }
  /** `detail`: what is wrong, without values of the proof. */
  | { readonly ok: false; readonly detail: string }
  /** RFC 9449 §8: the client repeats the request with this nonce. */
  | { readonly ok: false; readonly nonce: string };

const fail = (detail: string): ProofCheck => ({ ok: false, detail });

/** RFC 9449 §4.3. */
export function createProofVerifier({ memory, nonces }: ProofVerifierOptions) {
  const keys = new TwoGenerationCache<ProofKey>(MAX_CACHED_KEYS, MAX_LENGTH);

  return {
    algorithms: PROOF_ALGORITHMS,
    /** With `bound`, an accepted proof is recorded, and refused the next time. Throws a `Fault` if it cannot be recorded. */
    async verify(request: ProofRequest): Promise<ProofCheck> {
      const { proofs, bound, now } = request;
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
      const fault = findClaimFault(claims, request);
      if (fault !== undefined) return fail(fault);
      const { jti, iat, ath, nonce } = claims;
      if (bound !== undefined && ath !== hash('sha256', bound.accessToken, 'base64url'))
        return fail('ath is not the hash of the access token');

      const encodedHeader = proof.slice(0, proof.indexOf('.'));
      const proofKey = keys.get(encodedHeader) ?? (await readKey(header, alg));
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

export type ProofVerifier = ReturnType<typeof createProofVerifier>;

function findClaimFault(claims: JsonObject, { method, origin, path, now }: ProofRequest): string | undefined {
  const { jti, iat, htm, htu } = claims;
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

/** Seconds. A nonce is accepted in its own period and in the next one. */
const PERIOD = 120;
const PURPOSE = 'DPoP nonce';
/** 132 bits. */
const MAC_LENGTH = 22;

/** RFC 9449 §8: a nonce is the MAC of a period, so that all replicas with the same keys accept it and nothing is stored. */
export function createProofNonces(sealer: Pick<Sealer, 'digest' | 'digests'>) {
  const getPeriod = (now: Epoch): number => Math.floor(now / PERIOD);
  return {
    create: (now: Epoch): string => sealer.digest(PURPOSE, String(getPeriod(now))).slice(0, MAC_LENGTH),
    accepts(nonce: string, now: Epoch): boolean {
      const period = getPeriod(now);
      return [period, period - 1]
        .flatMap((at) => sealer.digests(PURPOSE, String(at)))
        .map((mac) => isEqualConstantTime(mac.slice(0, MAC_LENGTH), nonce))
        .includes(true);
    },
  };
}
