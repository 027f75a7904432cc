import { constants, type KeyObject, verify } from 'node:crypto';
import {
  children,
  contextTag,
  DerError,
  type Element,
  expectTag,
  readBitStringBytes,
  readElement,
  readOid,
  readSmallInteger,
  TAG,
} from './der.ts';

/** The common structure of certificates and revocation lists. */
export interface SignedStructure {
  /** The signed bytes. */
  readonly bytes: Buffer;
  readonly algorithm: Element;
  readonly signature: Buffer;
}

export function readSignedStructure(bytes: Buffer): {
  readonly signed: SignedStructure;
  readonly fields: readonly Element[];
} {
  const [body, algorithm, signature, ...more] = children(readElement(bytes, TAG.sequence));
  if (more.length > 0) throw new DerError('more than a signed structure');
  const tbs = expectTag(body, TAG.sequence);
  return {
    signed: {
      bytes: tbs.encoded,
      algorithm: expectTag(algorithm, TAG.sequence),
      signature: readBitStringBytes(signature),
    },
    fields: children(tbs),
  };
}

type SignatureScheme =
  | { readonly key: 'rsa' | 'ec'; readonly hash: string }
  | { readonly key: 'ed25519' | 'ed448' }
  | { readonly key: 'rsa-pss'; readonly hash: string; readonly saltLength: number };

const HASHES: Readonly<Record<string, string>> = {
  '2.16.840.1.101.3.4.2.1': 'sha256',
  '2.16.840.1.101.3.4.2.2': 'sha384',
  '2.16.840.1.101.3.4.2.3': 'sha512',
};

/** Without MD5 and SHA-1: all other algorithms are rejected. */
const SCHEMES: Readonly<Record<string, SignatureScheme>> = {
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

/** Undefined if the algorithm is not accepted. */
export function getSignatureScheme({ algorithm }: SignedStructure): SignatureScheme | undefined {
  const [oid, parameters, ...more] = children(algorithm);
  if (more.length > 0) return undefined;
  const name = readOid(oid);
  return name === RSA_PSS ? readPssScheme(parameters) : SCHEMES[name];
}

/** RFC 4055 §3.1: the defaults are SHA-1, so hash and mask are required. */
function readPssScheme(parameters: Element | undefined): SignatureScheme | undefined {
  if (parameters?.tag !== TAG.sequence) return undefined;
  const byTag = new Map(children(parameters).map((element) => [element.tag, element.content]));
  const hashBytes = byTag.get(contextTag(0));
  const maskBytes = byTag.get(contextTag(1));
  if (hashBytes === undefined || maskBytes === undefined) return undefined;
  const hash = HASHES[readOid(children(readElement(hashBytes, TAG.sequence))[0])];
  const [maskOid, maskHash] = children(readElement(maskBytes, TAG.sequence));
  if (hash === undefined || readOid(maskOid) !== MGF1) return undefined;
  if (HASHES[readOid(children(expectTag(maskHash, TAG.sequence))[0])] !== hash) return undefined;
  const salt = byTag.get(contextTag(2));
  return {
    key: 'rsa-pss',
    hash,
    saltLength: salt === undefined ? 20 : readSmallInteger(readElement(salt, TAG.integer)),
  };
}

export function verifySignature(signed: SignedStructure, scheme: SignatureScheme, key: KeyObject): boolean {
  const type = key.asymmetricKeyType;
  try {
    switch (scheme.key) {
      case 'rsa':
      case 'ec':
        return type === scheme.key && verify(scheme.hash, signed.bytes, key, signed.signature);
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
    // OpenSSL throws for some signatures that it cannot decode.
    return false;
  }
}

const ACCEPTED_CURVES: ReadonlySet<string | undefined> = new Set(['prime256v1', 'secp384r1', 'secp521r1']);

/** Why a key is not accepted; undefined if it is. */
export function findKeyWeakness(key: KeyObject): string | undefined {
  const type = key.asymmetricKeyType;
  const { modulusLength = 0, namedCurve } = key.asymmetricKeyDetails ?? {};
  if (type === 'rsa' || type === 'rsa-pss')
    return modulusLength < 2_048 ? `an RSA key of ${modulusLength} bits; at least 2048 are required` : undefined;
  if (type === 'ec') return ACCEPTED_CURVES.has(namedCurve) ? undefined : 'an elliptic curve that is not accepted';
  return type === 'ed25519' || type === 'ed448' ? undefined : 'a key type that is not accepted';
}
