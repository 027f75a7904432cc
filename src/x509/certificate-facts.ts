import type { Epoch } from '../domain/grant.ts';
import {
  children,
  contextTag,
  type DecodedText,
  DerError,
  decodeText,
  type Element,
  expectTag,
  readBoolean,
  readElement,
  readIntegerHex,
  readNamedBits,
  readOid,
  readSmallInteger,
  readTime,
  TAG,
} from './der.ts';
import { readSignedStructure, type SignedStructure } from './signature.ts';

/**
 * The fields of a certificate (RFC 5280 §4), not validated. Names that cannot be decoded are kept as problems, since a name
 * that is not used must not make the certificate unusable.
 */
export interface CertificateFacts {
  readonly signed: SignedStructure;
  /** The bytes of the integer, hex. */
  readonly serial: string;
  /** The Name, DER. */
  readonly issuer: Buffer;
  readonly subject: Buffer;
  readonly notBefore: Epoch;
  /** Inclusive. */
  readonly notAfter: Epoch;
  readonly commonNames: readonly DecodedText[];
  readonly emails: readonly DecodedText[];
  readonly userPrincipalNames: readonly DecodedText[];
  readonly dnsNames: readonly DecodedText[];
  readonly uris: readonly DecodedText[];
  /** Positions of the bits that are set (RFC 5280 §4.2.1.3); undefined if the extension is absent. */
  readonly keyUsage: ReadonlySet<number> | undefined;
  readonly extendedKeyUsage: ReadonlySet<string> | undefined;
  readonly isCa: boolean;
  /** Critical extensions that are not read here. */
  readonly unknownCritical: readonly string[];
  /** RFC 5280 §4.2.1.10. */
  readonly hasNameConstraints: boolean;
}

export const KEY_USAGE = { digitalSignature: 0, keyCertSign: 5, crlSign: 6 } as const;
export const CLIENT_AUTH = '1.3.6.1.5.5.7.3.2';
export const ANY_EXTENDED_KEY_USAGE = '2.5.29.37.0';

const COMMON_NAME = '2.5.4.3';
const USER_PRINCIPAL_NAME = '1.3.6.1.4.1.311.20.2.3';
const EXTENSION = {
  keyUsage: '2.5.29.15',
  subjectAltName: '2.5.29.17',
  basicConstraints: '2.5.29.19',
  extendedKeyUsage: '2.5.29.37',
} as const;
const NAME_CONSTRAINTS = '2.5.29.30';
const SUPPORTED_EXTENSIONS: ReadonlySet<string> = new Set(Object.values(EXTENSION));
/** Client certificates have 1 to 4 KiB. Reading the names of a large one takes milliseconds. */
export const MAX_CERTIFICATE_BYTES = 16_384;

/** Throws a `DerError`. */
export function readCertificateFacts(bytes: Uint8Array): CertificateFacts {
  if (bytes.length > MAX_CERTIFICATE_BYTES) throw new DerError('too large for a certificate');
  const { signed, fields } = readSignedStructure(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length));
  let at = 0;
  const next = (tag?: number): Element => {
    const element = fields[at];
    at += 1;
    return expectTag(element, tag ?? element?.tag ?? TAG.sequence);
  };
  const nextIs = (tag: number): boolean => fields[at]?.tag === tag;

  const version = nextIs(contextTag(0)) ? readSmallInteger(readElement(next().content, TAG.integer)) + 1 : 1;
  if (version !== 1 && version !== 3) throw new DerError('neither version 1 nor version 3');
  const serial = readIntegerHex(next());
  const innerAlgorithm = next(TAG.sequence);
  // RFC 5280 §4.1.1.2: both are the same.
  if (!innerAlgorithm.encoded.equals(signed.algorithm.encoded)) throw new DerError('two signature algorithms');
  const issuer = next(TAG.sequence);
  const [notBefore, notAfter, ...more] = children(next(TAG.sequence));
  if (more.length > 0) throw new DerError('more than two times in the validity');
  const subject = next(TAG.sequence);
  next(TAG.sequence);
  if (nextIs(contextTag(1, false))) next();
  if (nextIs(contextTag(2, false))) next();
  const extensions = nextIs(contextTag(3)) && version === 3 ? readExtensions(next().content) : new Map();
  if (at !== fields.length) throw new DerError('unknown fields');

  const readExtension = (oid: string, tag: number): Element | undefined => {
    const extension = extensions.get(oid);
    return extension === undefined ? undefined : readElement(extension.value, tag);
  };
  const constraints = readExtension(EXTENSION.basicConstraints, TAG.sequence);
  const usage = readExtension(EXTENSION.keyUsage, TAG.bitString);
  const purposes = readExtension(EXTENSION.extendedKeyUsage, TAG.sequence);
  return {
    signed,
    serial,
    issuer: issuer.encoded,
    subject: subject.encoded,
    notBefore: readTime(notBefore),
    notAfter: readTime(notAfter),
    commonNames: [...readCommonNames(subject)],
    ...readAlternativeNames(readExtension(EXTENSION.subjectAltName, TAG.sequence)),
    keyUsage: usage && readNamedBits(usage),
    extendedKeyUsage: purposes && new Set(children(purposes).map(readOid)),
    isCa: readIsCa(constraints),
    unknownCritical: [...extensions]
      .filter(([oid, { critical }]) => critical && !SUPPORTED_EXTENSIONS.has(oid))
      .map(([oid]) => oid),
    hasNameConstraints: extensions.has(NAME_CONSTRAINTS),
  };
}

interface Extension {
  readonly critical: boolean;
  readonly value: Buffer;
}

/** Extensions by OID, without their `[n] EXPLICIT` wrapper. RFC 5280 §4.2: none may be repeated. */
export function readExtensions(bytes: Buffer): ReadonlyMap<string, Extension> {
  const extensions = new Map<string, Extension>();
  for (const element of children(readElement(bytes, TAG.sequence))) {
    const parts = children(expectTag(element, TAG.sequence));
    const oid = readOid(parts[0]);
    const critical = parts.length === 3 && readBoolean(parts[1]);
    if (parts.length < 2 || parts.length > 3) throw new DerError('not an extension');
    if (extensions.has(oid)) throw new DerError('the same extension twice');
    extensions.set(oid, { critical, value: expectTag(parts.at(-1), TAG.octetString).content });
  }
  return extensions;
}

function* readCommonNames(subject: Element): Generator<DecodedText> {
  for (const relative of children(subject))
    for (const attribute of children(expectTag(relative, TAG.set))) {
      const [type, value, ...more] = children(expectTag(attribute, TAG.sequence));
      if (value === undefined || more.length > 0) throw new DerError('not a name attribute');
      if (readOid(type) === COMMON_NAME) yield decodeText(value);
    }
}

function readAlternativeNames(
  san: Element | undefined,
): Pick<CertificateFacts, 'emails' | 'userPrincipalNames' | 'dnsNames' | 'uris'> {
  const emails: DecodedText[] = [];
  const userPrincipalNames: DecodedText[] = [];
  const dnsNames: DecodedText[] = [];
  const uris: DecodedText[] = [];
  // RFC 5280 §4.2.1.6: `IMPLICIT IA5String`.
  const listsByTag = new Map([
    [contextTag(1, false), emails],
    [contextTag(2, false), dnsNames],
    [contextTag(6, false), uris],
  ]);
  for (const name of san === undefined ? [] : children(san)) {
    listsByTag.get(name.tag)?.push(decodeText({ ...name, tag: TAG.ia5String }));
    if (name.tag !== contextTag(0)) continue;
    const [type, wrapped, ...more] = children(name);
    if (wrapped === undefined || more.length > 0) throw new DerError('not an otherName');
    if (readOid(type) === USER_PRINCIPAL_NAME) userPrincipalNames.push(readPrincipalName(wrapped));
  }
  return { emails, userPrincipalNames, dnsNames, uris };
}

/** [MS-WCCE]: a UPN is a UTF8String; implementations disagree about other types. */
function readPrincipalName(wrapped: Element): DecodedText {
  const [value, ...more] = children(expectTag(wrapped, contextTag(0)));
  if (value === undefined || more.length > 0) throw new DerError('not an otherName');
  return value.tag === TAG.utf8String ? decodeText(value) : { ok: false, problem: 'it is not a UTF8String' };
}

function readIsCa(constraints: Element | undefined): boolean {
  const parts = constraints === undefined ? [] : children(constraints);
  const isCa = parts[0]?.tag === TAG.boolean && readBoolean(parts.shift());
  // Any path length allows the certificates that the CA signs directly.
  if (parts.length > 0) readSmallInteger(parts.shift());
  if (parts.length > 0) throw new DerError('unknown basic constraints');
  return isCa;
}
