import { type KeyObject, randomBytes } from 'node:crypto';
import { writeElement as element } from '../../x509/der.ts';
import {
  bitString,
  computeKeyId,
  ECDSA_SHA256,
  encodeExtension,
  encodeKeyReference,
  encodeTime,
  exportSpki,
  integer,
  octetString,
  oid,
  readSubject,
  sequence,
  signToPem,
  TRUE,
  tagged,
} from './encode.ts';

/**
 * Encodes X.509 certificates (RFC 5280) for development: Node cannot create certificates, and a package would be installed in
 * production for development alone. ECDSA with P-256 and SHA-256 only.
 */
interface CertificateOptions {
  readonly subject: readonly NamePart[];
  /** The certificate of the issuer, PEM; undefined: self-signed. */
  readonly issuer?: string;
  readonly publicKey: KeyObject;
  readonly signingKey: KeyObject;
  readonly notBefore: Date;
  readonly notAfter: Date;
  readonly use: 'ca' | 'server' | 'client';
  readonly names?: readonly AlternativeName[];
}

export type NamePart = readonly [attribute: 'commonName' | 'organization', value: string];
export type AlternativeName =
  | { readonly dns: string }
  | { readonly email: string }
  /** 4 or 16 bytes. */
  | { readonly ip: Buffer };

/** PEM. */
export function createCertificate(options: CertificateOptions): string {
  const tbs = sequence(
    tagged(0, integer(Buffer.of(2))),
    // RFC 5280 §4.1.2.2: positive, at most 20 octets.
    integer(Buffer.concat([Buffer.of(0x4d), randomBytes(15)])),
    ECDSA_SHA256,
    options.issuer === undefined ? encodeName(options.subject) : readSubject(options.issuer),
    sequence(encodeTime(options.notBefore), encodeTime(options.notAfter)),
    encodeName(options.subject),
    exportSpki(options.publicKey),
    tagged(3, sequence(...encodeExtensions(options))),
  );
  return signToPem('CERTIFICATE', tbs, options.signingKey);
}

function encodeExtensions({ use, publicKey, signingKey, names = [] }: CertificateOptions): Buffer[] {
  const isCa = use === 'ca';
  return [
    // §4.2.1.9: a CA with path length 0, or not a CA.
    encodeExtension('551d13', true, isCa ? sequence(TRUE, integer(Buffer.of(0))) : sequence()),
    // §4.2.1.3: keyCertSign and cRLSign, or digitalSignature.
    encodeExtension('551d0f', true, isCa ? bitString(Buffer.of(0x06), 1) : bitString(Buffer.of(0x80), 7)),
    // §4.2.1.12: serverAuth or clientAuth.
    ...(isCa ? [] : [encodeExtension('551d25', false, sequence(oid(`2b0601050507030${use === 'server' ? 1 : 2}`)))]),
    ...(names.length === 0 ? [] : [encodeExtension('551d11', false, sequence(...names.map(encodeAlternativeName)))]),
    ...(isCa ? [] : [encodeKeyReference(signingKey)]),
    encodeExtension('551d0e', false, octetString(computeKeyId(publicKey))),
  ];
}

const ATTRIBUTES = { commonName: '550403', organization: '55040a' } as const;

const encodeName = (parts: readonly NamePart[]): Buffer =>
  sequence(
    ...parts.map(([attribute, value]) =>
      element(0x31, sequence(oid(ATTRIBUTES[attribute]), element(0x0c, Buffer.from(value)))),
    ),
  );

function encodeAlternativeName(name: AlternativeName): Buffer {
  if ('dns' in name) return element(0x82, Buffer.from(name.dns));
  return 'email' in name ? element(0x81, Buffer.from(name.email)) : element(0x87, name.ip);
}
