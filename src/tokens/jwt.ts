import { constants, KeyObject, type SignKeyObjectInput, sign, type VerifyKeyObjectInput, verify } from 'node:crypto';
import { type JsonObject, parseStrictJsonObject } from '../lib/strict-json.ts';
import type { SigningAlgorithm } from './keyring-file.ts';

const ALPHABET = /^[A-Za-z0-9_-]+$/;
/** Last characters whose unused bits are zero: four of them after one byte, two after two bytes. */
const [AFTER_ONE_BYTE, AFTER_TWO_BYTES] = ['AQgw', 'AEIMQUYcgkosw048'];

/**
 * The same bytes have several base64url spellings: unused bits in the last character, padding, white space. Only the
 * canonical one is accepted, because caches and revocation are keyed by the string.
 */
export function isCanonicalBase64url(text: string): boolean {
  if (!ALPHABET.test(text)) return false;
  switch (text.length % 4) {
    case 0:
      return true;
    case 1:
      return false;
    case 2:
      return AFTER_ONE_BYTE.includes(text.charAt(text.length - 1));
    default:
      return AFTER_TWO_BYTES.includes(text.charAt(text.length - 1));
  }
}

/** A token whose form is valid and whose signature has not been verified. */
export interface DecodedToken {
  readonly header: JsonObject;
  readonly claims: JsonObject;
}

/** Returns undefined unless it is a JWT in compact serialization with unambiguous JSON (RFC 7515 §7.1, RFC 8725 §2.4). */
export function decodeToken(token: string): DecodedToken | undefined {
  const parts = token.split('.', 4);
  if (parts.length !== 3 || !parts.every(isCanonicalBase64url)) return undefined;
  const [header, claims] = parts.slice(0, 2).map(decodeJsonObject);
  return header && claims && { header, claims };
}

const UTF8 = new TextDecoder('utf-8', { fatal: true });

/** A part of a JWT, in canonical base64url. Undefined: not an object in unambiguous JSON. */
export function decodeJsonObject(part: string): JsonObject | undefined {
  try {
    return parseStrictJsonObject(UTF8.decode(Buffer.from(part, 'base64url')));
  } catch {
    return undefined;
  }
}

/** How the algorithms of RFC 7518 §3.1 and RFC 8037 with a public key are verified. There is no HMAC and no `none`. */
interface AlgorithmParameters {
  /** `kty` and `crv` are members of the JWK. */
  readonly kty: 'RSA' | 'EC' | 'OKP';
  readonly crv?: string;
  /** `type` and `namedCurve` are properties of the imported key. */
  readonly type: KeyObject['asymmetricKeyType'];
  readonly namedCurve?: string;
  /** Null if the digest is part of the algorithm. */
  readonly digest: 'sha256' | 'sha384' | 'sha512' | null;
  readonly options: Omit<SignKeyObjectInput, 'key'>;
}

const RSA = { kty: 'RSA', type: 'rsa' } as const;
const PKCS1 = { ...RSA, options: { padding: constants.RSA_PKCS1_PADDING } } as const;
/** RFC 7518 §3.5: the salt is as long as the digest. */
const pss = (saltLength: number) =>
  ({ ...RSA, options: { padding: constants.RSA_PKCS1_PSS_PADDING, saltLength } }) as const;
/** RFC 7518 §3.4: both numbers in their full length, not in DER. */
const EC = { kty: 'EC', type: 'ec', options: { dsaEncoding: 'ieee-p1363' } } as const;
const ED25519 = { kty: 'OKP', crv: 'Ed25519', type: 'ed25519', digest: null, options: {} } as const;

const ALGORITHMS = {
  RS256: { ...PKCS1, digest: 'sha256' },
  RS384: { ...PKCS1, digest: 'sha384' },
  RS512: { ...PKCS1, digest: 'sha512' },
  PS256: { ...pss(32), digest: 'sha256' },
  PS384: { ...pss(48), digest: 'sha384' },
  PS512: { ...pss(64), digest: 'sha512' },
  ES256: { ...EC, crv: 'P-256', namedCurve: 'prime256v1', digest: 'sha256' },
  ES384: { ...EC, crv: 'P-384', namedCurve: 'secp384r1', digest: 'sha384' },
  ES512: { ...EC, crv: 'P-521', namedCurve: 'secp521r1', digest: 'sha512' },
  EdDSA: ED25519,
  Ed25519: ED25519,
} as const satisfies Record<string, AlgorithmParameters>;

export type SignatureAlgorithm = keyof typeof ALGORITHMS;
export const SIGNATURE_ALGORITHMS = Object.keys(ALGORITHMS) as SignatureAlgorithm[];

export const isSignatureAlgorithm = (name: unknown): name is SignatureAlgorithm =>
  typeof name === 'string' && Object.hasOwn(ALGORITHMS, name);

export const MIN_RSA_BITS = 2_048;

/** `kty` and, where it matters, `crv` of the JWKs for an algorithm. */
export const getKeyType = (alg: SignatureAlgorithm): Pick<AlgorithmParameters, 'kty' | 'crv'> => ALGORITHMS[alg];

/** For `sign` and `verify` of node:crypto. Throws a `TypeError` if it is not a key of this type for the algorithm. */
function createKeyInput(alg: SignatureAlgorithm, key: KeyObject, keyType: KeyObject['type']): VerifyKeyObjectInput {
  const { type, namedCurve, options }: AlgorithmParameters = ALGORITHMS[alg];
  const { asymmetricKeyDetails: details = {} } = key;
  if (
    key.type !== keyType ||
    key.asymmetricKeyType !== type ||
    details.namedCurve !== namedCurve ||
    (type === 'rsa' && !((details.modulusLength ?? 0) >= MIN_RSA_BITS))
  )
    throw new TypeError(`not a ${keyType} key for ${alg}`);
  return { ...options, key };
}

/** A public key for one algorithm: a key is never used with another algorithm than it was imported for. */
export class VerificationKey {
  readonly #digest: AlgorithmParameters['digest'];
  readonly #key: VerifyKeyObjectInput;

  constructor(alg: SignatureAlgorithm, imported: CryptoKey) {
    this.#digest = ALGORITHMS[alg].digest;
    this.#key = createKeyInput(alg, KeyObject.from(imported), 'public');
  }

  /**
   * Is the signature of a JWS in compact serialization valid? The caller has checked its form and its header. Runs in libuv's thread
   * pool: forged tokens do not block the event loop.
   */
  verify(jws: string): Promise<boolean> {
    const end = jws.lastIndexOf('.');
    const input = Buffer.from(jws, 'latin1').subarray(0, end);
    const signature = Buffer.from(jws.slice(end + 1), 'base64url');
    return new Promise((resolve) => {
      verify(this.#digest, input, this.#key, signature, (error, isValid) => resolve(error === null && isValid));
    });
  }
}

/** A private key for one algorithm. */
export class PrivateKey {
  readonly #digest: AlgorithmParameters['digest'];
  readonly #key: SignKeyObjectInput;

  constructor(alg: SigningAlgorithm, key: KeyObject) {
    this.#digest = ALGORITHMS[alg].digest;
    this.#key = createKeyInput(alg, key, 'private');
  }

  /**
   * Returns a JWS in compact serialization. `input` is its header and payload. Runs in the event loop: a signature with these
   * algorithms takes less time than a job in the thread pool.
   */
  sign(input: string): string {
    return `${input}.${sign(this.#digest, Buffer.from(input, 'latin1'), this.#key).toString('base64url')}`;
  }
}
