import { createHash, createPublicKey, type KeyObject, randomBytes, sign, X509Certificate } from 'node:crypto';
import { children, readElement, TAG } from '../../x509/der.ts';

/**
 * Encodes X.509 certificates (RFC 5280) for development: Node cannot create certificates, and a package would be installed in
 * production for development alone. ECDSA with P-256 and SHA-256 only.
 */
export interface CertificateOptions {
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
  const signature = sign('sha256', tbs, options.signingKey);
  const der = sequence(tbs, ECDSA_SHA256, bitString(signature, 0));
  const lines = der.toString('base64').match(/.{1,64}/g) ?? [];
  return `-----BEGIN CERTIFICATE-----\n${lines.join('\n')}\n-----END CERTIFICATE-----\n`;
}

function encodeExtensions({ use, publicKey, signingKey, names = [] }: CertificateOptions): Buffer[] {
  const isCa = use === 'ca';
  return [
    // §4.2.1.9: a CA with path length 0, or not a CA.
    encodeExtension('551d13', true, isCa ? sequence(TRUE, integer(Buffer.of(0))) : sequence()),
    // §4.2.1.3: keyCertSign and cRLSign, or digitalSignature.
    encodeExtension('551d0f', true, isCa ? bitString(Buffer.of(0x06), 1) : bitString(Buffer.of(0x80), 7)),
    // §4.2.1.12: serverAuth or clientAuth.
    ...(isCa
      ? []
      : [encodeExtension('551d25', false, sequence(oid(`2b0601050507030${use === 'server' ? 1 : 2}`)))]),
    ...(names.length === 0
      ? []
      : [encodeExtension('551d11', false, sequence(...names.map(encodeAlternativeName)))]),
    ...(isCa ? [] : [encodeExtension('551d23', false, sequence(element(0x80, computeKeyId(signingKey))))]),
    encodeExtension('551d0e', false, octetString(computeKeyId(publicKey))),
  ];
}

function element(tag: number, ...contents: readonly Buffer[]): Buffer {
  const content = Buffer.concat(contents);
  const { length } = content;
  const size =
    length < 0x80 ? [length] : length < 0x100 ? [0x81, length] : [0x82, length >> 8, length & 0xff];
  return Buffer.concat([Buffer.of(tag, ...size), content]);
}

const sequence = (...parts: readonly Buffer[]): Buffer => element(0x30, ...parts);
const tagged = (number: number, content: Buffer): Buffer => element(0xa0 + number, content);
const oid = (hex: string): Buffer => element(0x06, Buffer.from(hex, 'hex'));
/** Positive only: the first bit of `bytes` must be 0. */
const integer = (bytes: Buffer): Buffer => element(0x02, bytes);
const octetString = (bytes: Buffer): Buffer => element(0x04, bytes);
const bitString = (bytes: Buffer, unused: number): Buffer => element(0x03, Buffer.of(unused), bytes);
const TRUE = element(0x01, Buffer.of(0xff));
const ECDSA_SHA256 = sequence(oid('2a8648ce3d040302'));

const encodeExtension = (id: string, critical: boolean, value: Buffer): Buffer =>
  sequence(oid(id), ...(critical ? [TRUE] : []), octetString(value));

const ATTRIBUTES = { commonName: '550403', organization: '55040a' } as const;

const encodeName = (parts: readonly NamePart[]): Buffer =>
  sequence(
    ...parts.map(([attribute, value]) =>
      element(0x31, sequence(oid(ATTRIBUTES[attribute]), element(0x0c, Buffer.from(value)))),
    ),
  );

/** Copied byte by byte from the issuer (RFC 5280 §4.1.2.4), whose encoding may differ from ours. */
function readSubject(pem: string): Buffer {
  const [tbs] = children(readElement(new X509Certificate(pem).raw, TAG.sequence));
  const subject = tbs && children(tbs)[5];
  if (subject === undefined) throw new Error('the CA certificate has no subject');
  return subject.encoded;
}

function encodeAlternativeName(name: AlternativeName): Buffer {
  if ('dns' in name) return element(0x82, Buffer.from(name.dns));
  return 'email' in name ? element(0x81, Buffer.from(name.email)) : element(0x87, name.ip);
}

/** §4.1.2.5: UTCTime until 2049, then GeneralizedTime. */
function encodeTime(date: Date): Buffer {
  const digits = `${date.toISOString().replace(/[-:T]|\..*$/g, '')}Z`;
  return date.getUTCFullYear() < 2_050
    ? element(0x17, Buffer.from(digits.slice(2)))
    : element(0x18, Buffer.from(digits));
}

const toPublicKey = (key: KeyObject): KeyObject => (key.type === 'private' ? createPublicKey(key) : key);
const exportSpki = (key: KeyObject): Buffer => toPublicKey(key).export({ type: 'spki', format: 'der' });

/** §4.2.1.2 (1): SHA-1 of the public key, which is the last 65 bytes of the SPKI for P-256. */
const computeKeyId = (key: KeyObject): Buffer =>
  createHash('sha1').update(exportSpki(key).subarray(-65)).digest();
