import { createPublicKey } from 'node:crypto';
import { calculateJwkThumbprint } from 'jose/jwk/thumbprint';
import { importJWK } from 'jose/key/import';
import { isJsonObject, type Json, type JsonObject, parseStrictJson } from '../../lib/strict-json.ts';
import { getKeyType, isSignatureAlgorithm, MIN_RSA_BITS, type SignatureAlgorithm, VerificationKey } from '../jwt.ts';

/** More keys than any issuer has: looking through them must stay cheap. */
const MAX_KEYS = 128;

/** A public key of another issuer. */
export class IssuerKey {
  /** RFC 7638 thumbprint: an issuer may use a `kid` again for another key. */
  readonly id: string;
  readonly #jwk: JsonObject;
  readonly #imported = new Map<SignatureAlgorithm, VerificationKey | Promise<VerificationKey>>();

  constructor(id: string, jwk: JsonObject) {
    this.id = id;
    this.#jwk = jwk;
  }

  matches(kid: string | undefined, alg: SignatureAlgorithm): boolean {
    const { kty, crv, kid: ownKid, alg: ownAlg } = this.#jwk;
    const type = getKeyType(alg);
    return (
      (kid === undefined || kid === ownKid) &&
      (ownAlg === undefined || ownAlg === alg) &&
      kty === type.kty &&
      (type.crv === undefined || crv === type.crv)
    );
  }

  /** Imported once per algorithm; synchronous from then on. Rejects with a `TypeError` if the key cannot be used for it. */
  import(alg: SignatureAlgorithm): VerificationKey | Promise<VerificationKey> {
    let imported = this.#imported.get(alg);
    if (imported === undefined) {
      imported = this.#import(alg);
      this.#imported.set(alg, imported);
    }
    return imported;
  }

  async #import(alg: SignatureAlgorithm): Promise<VerificationKey> {
    let imported: CryptoKey | Uint8Array;
    try {
      // A public key can be exported, whatever `ext` says: `KeyObject.from` requires it.
      imported = await importJWK({ ...this.#jwk, alg, ext: true }, alg);
    } catch (cause) {
      // Web Crypto throws a `DOMException` for operations that a public key cannot have.
      throw new TypeError('the key cannot be imported', { cause });
    }
    const key = new VerificationKey(alg, imported as CryptoKey);
    this.#imported.set(alg, key);
    return key;
  }
}

/**
 * The keys of a JWK Set (RFC 7517 §5) that can verify signatures: none, if the issuer has withdrawn them. Throws an `Error` if
 * it is not a JWK Set.
 */
export async function parseKeySet(text: string): Promise<readonly IssuerKey[]> {
  let parsed: Json;
  try {
    parsed = parseStrictJson(text);
  } catch {
    throw new Error('the key set is not valid JSON');
  }
  const jwks = isJsonObject(parsed) ? parsed['keys'] : undefined;
  if (!Array.isArray(jwks)) throw new Error('the key set has no "keys"');
  if (jwks.length > MAX_KEYS) throw new Error(`the key set has more than ${MAX_KEYS} keys`);
  const keys = new Map<string, IssuerKey>();
  for (const jwk of jwks as readonly Json[]) {
    // RFC 7517 §5: keys that are not understood are ignored.
    if (!isJsonObject(jwk) || !isVerificationKey(jwk)) continue;
    try {
      // Throws if the key is not valid, such as a point that is not on its curve.
      createPublicKey({ key: jwk, format: 'jwk' });
      const id = await calculateJwkThumbprint(jwk);
      keys.set(`${id} ${jwk['kid'] as string} ${jwk['alg'] as string}`, new IssuerKey(id, jwk));
    } catch {}
  }
  return [...keys.values()];
}

function isVerificationKey({ kty, use, key_ops: operations, d, k, n, kid, alg }: JsonObject): boolean {
  // A private key in a public document is compromised, and a symmetric key could be used to sign.
  if (d !== undefined || k !== undefined) return false;
  if (use !== undefined && use !== 'sig') return false;
  if (operations !== undefined && !(Array.isArray(operations) && operations.includes('verify'))) return false;
  if (kid !== undefined && typeof kid !== 'string') return false;
  if (alg !== undefined && !isSignatureAlgorithm(alg)) return false;
  if (kty !== 'RSA') return kty === 'EC' || kty === 'OKP';
  return typeof n === 'string' && getBitLength(n) >= MIN_RSA_BITS;
}

const getBitLength = (modulus: string): number => {
  const bytes = Buffer.from(modulus, 'base64url');
  const first = bytes.findIndex((byte) => byte !== 0);
  return first < 0 ? 0 : (bytes.length - first) * 8 - Math.clz32(bytes[first] as number) + 24;
};
