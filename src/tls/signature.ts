import { constants, type KeyObject, verify } from 'node:crypto';
import {
  children,
  context,
  DerError,
  type Element,
  expect,
  readBitBytes,
  readOid,
  readOne,
  readSmallInteger,
  TAG,
} from './der.ts';

/** What certificates and revocation lists have in common: a sequence, how it was signed, and the signature. */
export interface Signed {
  /** The bytes that were signed. */
  readonly bytes: Buffer;
  readonly algorithm: Element;
  readonly signature: Buffer;
}

export function readSigned(bytes: Buffer): { readonly signed: Signed; readonly fields: readonly Element[] } {
  const [body, algorithm, signature, ...more] = children(readOne(bytes, TAG.sequence));
  if (more.length > 0) throw new DerError('more than a signed structure');
  const tbs = expect(body, TAG.sequence);
  return {
    signed: {
      bytes: tbs.whole,
      algorithm: expect(algorithm, TAG.sequence),
      signature: readBitBytes(signature),
    },
    fields: children(tbs),
  };
}

type Scheme =
  | { readonly key: 'rsa' | 'ec'; readonly hash: string }
  | { readonly key: 'ed25519' | 'ed448' }
  | { readonly key: 'rsa-pss'; readonly hash: string; readonly saltLength: number };

const HASHES: Readonly<Record<string, string>> = {
  '2.16.840.1.101.3.4.2.1': 'sha256',
  '2.16.840.1.101.3.4.2.2': 'sha384',
  '2.16.840.1.101.3.4.2.3': 'sha512',
};

/** MD5, SHA-1 and everything unknown are missing here, and so refused. */
const SCHEMES: Readonly<Record<string, Scheme>> = {
  '1.2.840.113549.1.1.11': { key: 'rsa', hash: 'sha256' },
  '1.2.840.113549.1.1.12': { key: 'rsa', hash: 'sha384' },
  '1.2.840.113549.1.1.13': { key: 'rsa', hash: 'sha512' },
  '1.2.840.10045.4.3.2': { key: 'ec', hash: 'sha256' },
  '1.2.840.10045.4.3.3': { key: 'ec', hash: 'sha384' },
  '1.2.840.10045.4.3.4': { key: 'ec', hash: 'sha512' },
  '1.3.101.112': { key: 'ed25519' },
  '1.3.101.113': { key: 'ed448' },
};
const RSA_PSS = '1.2.840.113549.1.1.10';
const MGF1 = '1.2.840.113549.1.1.8';

/** How a structure says it was signed; undefined when that is not accepted (any more). */
export function schemeOf({ algorithm }: Signed): Scheme | undefined {
  const [oid, parameters, ...more] = children(algorithm);
  if (more.length > 0) return undefined;
  const name = readOid(oid);
  return name === RSA_PSS ? pssScheme(parameters) : SCHEMES[name];
}

/** RFC 4055 §3.1. What is left out means SHA-1, so hash and mask must both be named. */
function pssScheme(parameters: Element | undefined): Scheme | undefined {
  if (parameters?.tag !== TAG.sequence) return undefined;
  const named = new Map(children(parameters).map((element) => [element.tag, element.content]));
  const hashBytes = named.get(context(0));
  const maskBytes = named.get(context(1));
  if (hashBytes === undefined || maskBytes === undefined) return undefined;
  const hash = HASHES[readOid(children(readOne(hashBytes, TAG.sequence))[0])];
  const [maskOid, maskHash] = children(readOne(maskBytes, TAG.sequence));
  if (hash === undefined || readOid(maskOid) !== MGF1) return undefined;
  if (HASHES[readOid(children(expect(maskHash, TAG.sequence))[0])] !== hash) return undefined;
  const salt = named.get(context(2));
  return {
    key: 'rsa-pss',
    hash,
    saltLength: salt === undefined ? 20 : readSmallInteger(readOne(salt, TAG.integer)),
  };
}

/** Did the holder of this key sign exactly these bytes? */
export function isSignedBy(signed: Signed, scheme: Scheme, key: KeyObject): boolean {
  const type = key.asymmetricKeyType;
  try {
    switch (scheme.key) {
      case 'rsa':
        return type === 'rsa' && verify(scheme.hash, signed.bytes, key, signed.signature);
      case 'ec':
        return type === 'ec' && verify(scheme.hash, signed.bytes, key, signed.signature);
      case 'rsa-pss':
        return (
          (type === 'rsa' || type === 'rsa-pss') &&
          verify(
            scheme.hash,
            signed.bytes,
            { key, padding: constants.RSA_PKCS1_PSS_PADDING, saltLength: scheme.saltLength },
            signed.signature,
          )
        );
      case 'ed25519':
      case 'ed448':
        return type === scheme.key && verify(null, signed.bytes, key, signed.signature);
    }
  } catch {
    // OpenSSL throws at some signatures that cannot even be decoded: those are not right either.
    return false;
  }
}

const CURVES: ReadonlySet<string | undefined> = new Set(['prime256v1', 'secp384r1', 'secp521r1']);

/** Why a key is too weak to be believed; undefined when it is not. */
export function weaknessOf(key: KeyObject): string | undefined {
  const type = key.asymmetricKeyType;
  const { modulusLength = 0, namedCurve } = key.asymmetricKeyDetails ?? {};
  if (type === 'rsa' || type === 'rsa-pss')
    return modulusLength < 2_048
      ? `an RSA key of ${modulusLength} bits; at least 2048 are needed`
      : undefined;
  if (type === 'ec') return CURVES.has(namedCurve) ? undefined : 'an elliptic curve that is not accepted';
  return type === 'ed25519' || type === 'ed448' ? undefined : 'a kind of key that is not accepted';
}
