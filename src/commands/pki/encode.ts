import { createHash, createPublicKey, type KeyObject, sign, X509Certificate } from 'node:crypto';
import { children, writeElement as element, readElement, TAG } from '../../x509/der.ts';

/** What certificates and revocation lists (RFC 5280) have in common. ECDSA with P-256 and SHA-256 only. */
export const sequence = (...parts: readonly Buffer[]): Buffer => element(TAG.sequence, ...parts);
export const tagged = (number: number, content: Buffer): Buffer => element(0xa0 + number, content);
export const oid = (hex: string): Buffer => element(0x06, Buffer.from(hex, 'hex'));
/** Positive only: the first bit of `bytes` must be 0. */
export const integer = (bytes: Buffer): Buffer => element(TAG.integer, bytes);
export const octetString = (bytes: Buffer): Buffer => element(0x04, bytes);
export const bitString = (bytes: Buffer, unused: number): Buffer => element(0x03, Buffer.of(unused), bytes);
export const TRUE: Buffer = element(0x01, Buffer.of(0xff));
export const ECDSA_SHA256: Buffer = sequence(oid('2a8648ce3d040302'));

export const encodeExtension = (id: string, critical: boolean, value: Buffer): Buffer =>
  sequence(oid(id), ...(critical ? [TRUE] : []), octetString(value));

/** §4.2.1.1: the authority key identifier. */
export const encodeKeyReference = (issuerKey: KeyObject): Buffer =>
  encodeExtension('551d23', false, sequence(element(0x80, computeKeyId(issuerKey))));

/** §4.1.2.5: UTCTime until 2049, then GeneralizedTime. */
export function encodeTime(date: Date): Buffer {
  const digits = `${date.toISOString().replace(/[-:T]|\..*$/g, '')}Z`;
  return date.getUTCFullYear() < 2_050
    ? element(TAG.utcTime, Buffer.from(digits.slice(2)))
    : element(TAG.generalizedTime, Buffer.from(digits));
}

/** Copied byte by byte from the issuer (§4.1.2.4), whose encoding may differ from ours. */
export function readSubject(pem: string): Buffer {
  const [tbs] = children(readElement(new X509Certificate(pem).raw, TAG.sequence));
  const subject = tbs && children(tbs)[5];
  if (subject === undefined) throw new Error('the CA certificate has no subject');
  return subject.encoded;
}

export function signToPem(label: 'CERTIFICATE' | 'X509 CRL', tbs: Buffer, key: KeyObject): string {
  const der = sequence(tbs, ECDSA_SHA256, bitString(sign('sha256', tbs, key), 0));
  const lines = der.toString('base64').match(/.{1,64}/g) ?? [];
  return `-----BEGIN ${label}-----\n${lines.join('\n')}\n-----END ${label}-----\n`;
}

const toPublicKey = (key: KeyObject): KeyObject => (key.type === 'private' ? createPublicKey(key) : key);
export const exportSpki = (key: KeyObject): Buffer => toPublicKey(key).export({ type: 'spki', format: 'der' });

/** §4.2.1.2 (1): SHA-1 of the public key, which is the last 65 bytes of the SPKI for P-256. */
export const computeKeyId = (key: KeyObject): Buffer =>
  createHash('sha1').update(exportSpki(key).subarray(-65)).digest();
