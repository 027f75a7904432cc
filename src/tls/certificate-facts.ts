import type { Epoch } from '../domain/epoch.ts';
import {
  children,
  context,
  DerError,
  type Element,
  expect,
  type ReadText,
  readBits,
  readBoolean,
  readIntegerHex,
  readOid,
  readOne,
  readSmallInteger,
  readText,
  readTime,
  TAG,
} from './der.ts';
import { readSigned, type Signed } from './signature.ts';

/**
 * What a certificate says, read from its bytes (RFC 5280 §4). Nothing here is judged: whether the signature is
 * right and the facts are good enough is the judge's business. Names that cannot be read are kept as problems,
 * since a name that nobody asks for must not make a certificate useless.
 */
export interface CertificateFacts {
  readonly signed: Signed;
  /** Hex, as the integer stands in the certificate. */
  readonly serial: string;
  /** The Name, DER. */
  readonly issuer: Buffer;
  readonly subject: Buffer;
  readonly notBefore: Epoch;
  /** The certificate is valid through this second. */
  readonly notAfter: Epoch;
  readonly commonNames: readonly ReadText[];
  readonly emails: readonly ReadText[];
  readonly userPrincipalNames: readonly ReadText[];
  /** Numbers of the set bits (RFC 5280 §4.2.1.3); undefined when the extension is absent. */
  readonly keyUsage: ReadonlySet<number> | undefined;
  readonly extendedKeyUsage: ReadonlySet<string> | undefined;
  readonly isCa: boolean;
  readonly pathLength: number | undefined;
  /** Critical extensions beyond those read here. */
  readonly unknownCritical: readonly string[];
  /** Limits the names it may write (RFC 5280 §4.2.1.10). */
  readonly constrainsNames: boolean;
}

export const KEY_USAGE = { digitalSignature: 0, keyCertSign: 5, crlSign: 6 } as const;
export const CLIENT_AUTH = '1.3.6.1.5.5.7.3.2';
export const ANY_USAGE = '2.5.29.37.0';

const COMMON_NAME = '2.5.4.3';
const USER_PRINCIPAL_NAME = '1.3.6.1.4.1.311.20.2.3';
const EXTENSION = {
  keyUsage: '2.5.29.15',
  subjectAltName: '2.5.29.17',
  basicConstraints: '2.5.29.19',
  extendedKeyUsage: '2.5.29.37',
} as const;
const NAME_CONSTRAINTS = '2.5.29.30';
const READ_HERE: ReadonlySet<string> = new Set(Object.values(EXTENSION));
const MAX_CERTIFICATE_BYTES = 65_536;

/** Throws a `DerError` for whatever is not a certificate. */
export function readCertificate(bytes: Uint8Array): CertificateFacts {
  if (bytes.length > MAX_CERTIFICATE_BYTES) throw new DerError('too large for a certificate');
  const { signed, fields } = readSigned(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length));
  let at = 0;
  const next = (tag?: number): Element => {
    const element = fields[at];
    at += 1;
    return expect(element, tag ?? element?.tag ?? TAG.sequence);
  };
  const has = (tag: number): boolean => fields[at]?.tag === tag;

  const version = has(context(0)) ? readSmallInteger(readOne(next().content, TAG.integer)) + 1 : 1;
  if (version !== 1 && version !== 3) throw new DerError('neither version 1 nor version 3');
  const serial = readIntegerHex(next());
  const innerAlgorithm = next(TAG.sequence);
  // RFC 5280 §4.1.1.2: the algorithm inside the signature and the one beside it are the same.
  if (!innerAlgorithm.whole.equals(signed.algorithm.whole)) throw new DerError('two signature algorithms');
  const issuer = next(TAG.sequence);
  const [notBefore, notAfter, ...more] = children(next(TAG.sequence));
  if (more.length > 0) throw new DerError('a validity of more than two times');
  const subject = next(TAG.sequence);
  next(TAG.sequence);
  if (has(context(1, false))) next();
  if (has(context(2, false))) next();
  const extensions = has(context(3)) && version === 3 ? readExtensions(next().content) : new Map();
  if (at !== fields.length) throw new DerError('unknown fields');

  const inside = (oid: string, tag: number): Element | undefined => {
    const extension = extensions.get(oid);
    return extension === undefined ? undefined : readOne(extension.value, tag);
  };
  const constraints = inside(EXTENSION.basicConstraints, TAG.sequence);
  const usage = inside(EXTENSION.keyUsage, TAG.bitString);
  const purposes = inside(EXTENSION.extendedKeyUsage, TAG.sequence);
  return {
    signed,
    serial,
    issuer: issuer.whole,
    subject: subject.whole,
    notBefore: readTime(notBefore),
    notAfter: readTime(notAfter),
    commonNames: [...namesIn(subject)],
    ...alternativeNames(inside(EXTENSION.subjectAltName, TAG.sequence)),
    keyUsage: usage && readBits(usage),
    extendedKeyUsage: purposes && new Set(children(purposes).map(readOid)),
    ...basicConstraints(constraints),
    unknownCritical: [...extensions]
      .filter(([oid, { critical }]) => critical && !READ_HERE.has(oid))
      .map(([oid]) => oid),
    constrainsNames: extensions.has(NAME_CONSTRAINTS),
  };
}

export interface Extension {
  readonly critical: boolean;
  readonly value: Buffer;
}

/** Extensions by OID, from the bytes inside their `[n] EXPLICIT` wrapper. The same one twice is an error (RFC 5280 §4.2). */
export function readExtensions(bytes: Buffer): ReadonlyMap<string, Extension> {
  const found = new Map<string, Extension>();
  for (const element of children(readOne(bytes, TAG.sequence))) {
    const parts = children(expect(element, TAG.sequence));
    const oid = readOid(parts[0]);
    const critical = parts.length === 3 && readBoolean(parts[1]);
    if (parts.length < 2 || parts.length > 3) throw new DerError('not an extension');
    if (found.has(oid)) throw new DerError('the same extension twice');
    found.set(oid, { critical, value: expect(parts.at(-1), TAG.octetString).content });
  }
  return found;
}

function* namesIn(subject: Element): Generator<ReadText> {
  for (const relative of children(subject))
    for (const attribute of children(expect(relative, TAG.set))) {
      const [type, value, ...more] = children(expect(attribute, TAG.sequence));
      if (value === undefined || more.length > 0) throw new DerError('not a name attribute');
      if (readOid(type) === COMMON_NAME) yield readText(value);
    }
}

function alternativeNames(san: Element | undefined): Pick<CertificateFacts, 'emails' | 'userPrincipalNames'> {
  const emails: ReadText[] = [];
  const userPrincipalNames: ReadText[] = [];
  for (const name of san === undefined ? [] : children(san)) {
    if (name.tag === context(1, false)) emails.push(readText({ ...name, tag: TAG.ia5String }));
    if (name.tag !== context(0)) continue;
    const [type, wrapped, ...more] = children(name);
    if (wrapped === undefined || more.length > 0) throw new DerError('not an otherName');
    if (readOid(type) === USER_PRINCIPAL_NAME) userPrincipalNames.push(principalName(wrapped));
  }
  return { emails, userPrincipalNames };
}

/** [MS-WCCE]: a UPN is a UTF8String, and readers disagree about every other type. */
function principalName(wrapped: Element): ReadText {
  const [value, ...more] = children(expect(wrapped, context(0)));
  if (value === undefined || more.length > 0) throw new DerError('not an otherName');
  return value.tag === TAG.utf8String ? readText(value) : { ok: false, problem: 'it is not a UTF8String' };
}

function basicConstraints(constraints: Element | undefined): Pick<CertificateFacts, 'isCa' | 'pathLength'> {
  const parts = constraints === undefined ? [] : children(constraints);
  const isCa = parts[0]?.tag === TAG.boolean && readBoolean(parts.shift());
  const pathLength = parts.length > 0 ? readSmallInteger(parts.shift()) : undefined;
  if (parts.length > 0) throw new DerError('unknown basic constraints');
  return { isCa, pathLength };
}
