import { createHash, createPublicKey, type KeyObject, randomBytes, sign, X509Certificate } from 'node:crypto';
import { children, readOne, TAG } from '../tls/der.ts';

/**
 * X.509 certificates (RFC 5280) of the demo, written as DER by hand: Node reads certificates and does not make them, and a
 * package for it would be in every production installation for the demo alone. ECDSA with P-256 and SHA-256 only.
 */
export interface CertificateTerms {
  readonly subject: readonly NamePart[];
  /** The certificate of the issuer, PEM; undefined: self-signed. */
  readonly issuer?: string;
  readonly publicKey: KeyObject;
  /** Of the issuer. */
  readonly signingKey: KeyObject;
  readonly notBefore: Date;
  readonly notAfter: Date;
  /** A CA signs certificates and is no leaf. */
  readonly use: 'ca' | 'server' | 'client';
  readonly names?: readonly AlternativeName[];
}

export type NamePart = readonly [attribute: 'commonName' | 'organization', value: string];
export type AlternativeName =
  | { readonly dns: string }
  | { readonly email: string }
  /** As bytes, 4 or 16 of them. */
  | { readonly ip: Buffer };

/** PEM. */
export function makeCertificate(terms: CertificateTerms): string {
  const tbs = sequence(
    tagged(0, integer(Buffer.of(2))),
    // RFC 5280 §4.1.2.2: positive, at most 20 octets.
    integer(Buffer.concat([Buffer.of(0x4d), randomBytes(15)])),
    ECDSA_SHA256,
    terms.issuer === undefined ? name(terms.subject) : subjectIn(terms.issuer),
    sequence(time(terms.notBefore), time(terms.notAfter)),
    name(terms.subject),
    spki(terms.publicKey),
    tagged(3, sequence(...extensions(terms))),
  );
  const signature = sign('sha256', tbs, terms.signingKey);
  const der = sequence(tbs, ECDSA_SHA256, bits(signature, 0));
  const lines = der.toString('base64').match(/.{1,64}/g) ?? [];
  return `-----BEGIN CERTIFICATE-----\n${lines.join('\n')}\n-----END CERTIFICATE-----\n`;
}

function extensions({ use, publicKey, signingKey, names = [] }: CertificateTerms): Buffer[] {
  const isCa = use === 'ca';
  return [
    // §4.2.1.9: a CA without CAs below it, or no CA.
    extension('551d13', true, isCa ? sequence(TRUE, integer(Buffer.of(0))) : sequence()),
    // §4.2.1.3: keyCertSign and cRLSign, or digitalSignature.
    extension('551d0f', true, isCa ? bits(Buffer.of(0x06), 1) : bits(Buffer.of(0x80), 7)),
    // §4.2.1.12: serverAuth or clientAuth.
    ...(isCa
      ? []
      : [extension('551d25', false, sequence(oid(`2b0601050507030${use === 'server' ? 1 : 2}`)))]),
    ...(names.length === 0 ? [] : [extension('551d11', false, sequence(...names.map(alternative)))]),
    ...(isCa ? [] : [extension('551d23', false, sequence(element(0x80, keyId(signingKey))))]),
    extension('551d0e', false, octets(keyId(publicKey))),
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
/** Positive ones only: the first bit of `bytes` is 0. */
const integer = (bytes: Buffer): Buffer => element(0x02, bytes);
const octets = (bytes: Buffer): Buffer => element(0x04, bytes);
const bits = (bytes: Buffer, unused: number): Buffer => element(0x03, Buffer.of(unused), bytes);
const TRUE = element(0x01, Buffer.of(0xff));
const ECDSA_SHA256 = sequence(oid('2a8648ce3d040302'));

const extension = (id: string, critical: boolean, value: Buffer): Buffer =>
  sequence(oid(id), ...(critical ? [TRUE] : []), octets(value));

const ATTRIBUTES = { commonName: '550403', organization: '55040a' } as const;

const name = (parts: readonly NamePart[]): Buffer =>
  sequence(
    ...parts.map(([attribute, value]) =>
      element(0x31, sequence(oid(ATTRIBUTES[attribute]), element(0x0c, Buffer.from(value)))),
    ),
  );

/** Byte by byte as the issuer has it (RFC 5280 §4.1.2.4): an authority of an earlier version may write it otherwise. */
function subjectIn(pem: string): Buffer {
  const [tbs] = children(readOne(new X509Certificate(pem).raw, TAG.sequence));
  const subject = tbs && children(tbs)[5];
  if (subject === undefined) throw new Error('the certificate of the authority has no subject');
  return subject.whole;
}

function alternative(given: AlternativeName): Buffer {
  if ('dns' in given) return element(0x82, Buffer.from(given.dns));
  return 'email' in given ? element(0x81, Buffer.from(given.email)) : element(0x87, given.ip);
}

/** §4.1.2.5: two digits of the year until 2049. */
function time(date: Date): Buffer {
  const digits = `${date.toISOString().replace(/[-:T]|\..*$/g, '')}Z`;
  return date.getUTCFullYear() < 2_050
    ? element(0x17, Buffer.from(digits.slice(2)))
    : element(0x18, Buffer.from(digits));
}

const publicOf = (key: KeyObject): KeyObject => (key.type === 'private' ? createPublicKey(key) : key);
const spki = (key: KeyObject): Buffer => publicOf(key).export({ type: 'spki', format: 'der' });

/** §4.2.1.2 (1): SHA-1 of the public key; an uncompressed point of P-256 is the last 65 bytes. */
const keyId = (key: KeyObject): Buffer => createHash('sha1').update(spki(key).subarray(-65)).digest();
