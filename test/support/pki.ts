import 'reflect-metadata';
import { KeyObject, sign, webcrypto } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import * as x509 from '@peculiar/x509';

/**
 * A certificate authority for tests: real certificates and CRLs, valid by default and invalid in exactly the way a test
 * asks for.
 *
 *   const ca = await createCa();
 *   const alice = await issue(ca, { commonName: 'alice' });          // a valid client certificate
 *   const server = await issueServer(ca);                            // localhost, 127.0.0.1, ::1
 *   const crl = await createCrl(ca, { revoked: [alice] });
 *   writePki(folder, { 'ca.pem': ca.pem, 'alice.pem': alice.pem, 'alice-key.pem': alice.keyPem });
 *
 * They are created with @peculiar/x509, so that the product's DER reader is not tested against its own mistakes. Anything a
 * library refuses to write (a raw subject, an MD5 signature) is inserted afterwards, and the result signed again.
 */
export interface IssuedCertificate {
  readonly pem: string;
  readonly keyPem: string;
  readonly der: Buffer;
  /** Lower-case hex, as written in the certificate. */
  readonly serial: string;
  readonly keys: webcrypto.CryptoKeyPair;
  readonly subject: string;
}

export type KeyKind = 'p256' | 'ed25519' | 'rsa1024' | 'rsa2048' | 'pss2048';
export type Hash = 'SHA-1' | 'SHA-256' | 'SHA-384';

export interface RawExtension {
  readonly oid: string;
  readonly critical?: boolean;
  /** The bytes inside the extension's octet string. */
  readonly value: Buffer;
}

export interface CaOptions {
  readonly name?: string;
  /** Default: self-signed. */
  readonly issuer?: IssuedCertificate;
  readonly key?: KeyKind;
  readonly keys?: webcrypto.CryptoKeyPair;
  readonly notBefore?: Date;
  readonly notAfter?: Date;
  readonly pathLength?: number;
  /** `false` omits the CA flag. */
  readonly ca?: boolean;
  readonly keyUsage?: number;
  readonly extensions?: readonly RawExtension[];
}

export interface LeafOptions {
  readonly commonName?: string | readonly string[];
  /** Other attributes of the subject, after the common names. */
  readonly subject?: x509.JsonNameParams;
  /** The complete subject, as DER (see `derName`). */
  readonly subjectDer?: Buffer;
  readonly emails?: readonly string[];
  readonly userPrincipalNames?: readonly string[];
  readonly dnsNames?: readonly string[];
  readonly uris?: readonly string[];
  readonly addresses?: readonly string[];
  /** OIDs; null omits the extension. Default: clientAuth. */
  readonly extendedKeyUsage?: readonly string[] | null;
  /** Flags; null omits the extension. Default: digitalSignature. */
  readonly keyUsage?: number | null;
  readonly notBefore?: Date;
  readonly notAfter?: Date;
  readonly serial?: string;
  readonly key?: KeyKind;
  readonly keys?: webcrypto.CryptoKeyPair;
  readonly hash?: Hash;
  /** Sign with MD5 (RSA issuers only). */
  readonly md5?: boolean;
  /** Sign with these keys while naming the CA as issuer. */
  readonly signedBy?: webcrypto.CryptoKeyPair;
  readonly ca?: boolean;
  readonly extensions?: readonly RawExtension[];
}

export interface CrlOptions {
  readonly revoked?: readonly (IssuedCertificate | string)[];
  readonly thisUpdate?: Date;
  /** null omits it. */
  readonly nextUpdate?: Date | null;
  readonly number?: number;
  readonly signedBy?: webcrypto.CryptoKeyPair;
  readonly extensions?: readonly RawExtension[];
}

export interface IssuedCrl {
  readonly pem: string;
  readonly der: Buffer;
}

export const EKU = {
  clientAuth: '1.3.6.1.5.5.7.3.2',
  serverAuth: '1.3.6.1.5.5.7.3.1',
  any: '2.5.29.37.0',
} as const;

export const USAGE = x509.KeyUsageFlags;

const ALGORITHMS = {
  p256: { name: 'ECDSA', namedCurve: 'P-256' },
  ed25519: { name: 'Ed25519' },
  rsa1024: {
    name: 'RSASSA-PKCS1-v1_5',
    modulusLength: 1_024,
    publicExponent: new Uint8Array([1, 0, 1]),
    hash: 'SHA-256',
  },
  rsa2048: {
    name: 'RSASSA-PKCS1-v1_5',
    modulusLength: 2_048,
    publicExponent: new Uint8Array([1, 0, 1]),
    hash: 'SHA-256',
  },
  pss2048: {
    name: 'RSA-PSS',
    modulusLength: 2_048,
    publicExponent: new Uint8Array([1, 0, 1]),
    hash: 'SHA-256',
  },
} as const;

const DAY = 86_400_000;
const daysAgo = (days: number): Date => new Date(Date.now() - days * DAY);
const daysAhead = (days: number): Date => daysAgo(-days);

export async function generateKeys(kind: KeyKind = 'p256'): Promise<webcrypto.CryptoKeyPair> {
  const keys = await webcrypto.subtle.generateKey(ALGORITHMS[kind], true, ['sign', 'verify']);
  return keys as webcrypto.CryptoKeyPair;
}

let serials = 0;
const newSerial = (): string => {
  serials += 1;
  return `4d${process.pid.toString(16).padStart(6, '0')}${serials.toString(16).padStart(8, '0')}`;
};

const signingAlgorithm = (keys: webcrypto.CryptoKeyPair, hash: Hash): { name: string; hash: string } => ({
  name: keys.privateKey.algorithm.name,
  hash,
  ...(keys.privateKey.algorithm.name === 'RSA-PSS' && { saltLength: 32 }),
});

async function toIssuedCertificate(
  certificate: x509.X509Certificate,
  keys: webcrypto.CryptoKeyPair,
  der: Buffer = Buffer.from(certificate.rawData),
): Promise<IssuedCertificate> {
  const keyPem = KeyObject.from(keys.privateKey).export({ type: 'pkcs8', format: 'pem' });
  return {
    pem: toPem('CERTIFICATE', der),
    keyPem,
    der,
    serial: certificate.serialNumber.toLowerCase(),
    keys,
    subject: certificate.subject,
  };
}

export const toPem = (label: string, der: Uint8Array): string =>
  `-----BEGIN ${label}-----\n${Buffer.from(der)
    .toString('base64')
    .replace(/(.{64})(?!$)/g, '$1\n')}\n-----END ${label}-----\n`;

export async function createCa(options: CaOptions = {}): Promise<IssuedCertificate> {
  const keys = options.keys ?? (await generateKeys(options.key));
  const name = options.name ?? 'CN=Test CA, O=Example';
  const signer = options.issuer?.keys ?? keys;
  const isCa = options.ca ?? true;
  const certificate = await x509.X509CertificateGenerator.create({
    serialNumber: newSerial(),
    subject: name,
    issuer: options.issuer?.subject ?? name,
    notBefore: options.notBefore ?? daysAgo(10),
    notAfter: options.notAfter ?? daysAhead(3_650),
    signingAlgorithm: signingAlgorithm(signer, 'SHA-256'),
    publicKey: keys.publicKey,
    signingKey: signer.privateKey,
    extensions: [
      new x509.BasicConstraintsExtension(isCa, options.pathLength, true),
      new x509.KeyUsagesExtension(
        options.keyUsage ?? x509.KeyUsageFlags.keyCertSign | x509.KeyUsageFlags.cRLSign,
        true,
      ),
      await x509.SubjectKeyIdentifierExtension.create(keys.publicKey),
      ...(options.extensions ?? []).map(
        ({ oid, critical = false, value }) => new x509.Extension(oid, critical, new Uint8Array(value)),
      ),
    ],
  });
  return toIssuedCertificate(certificate, keys);
}

export async function issue(ca: IssuedCertificate, options: LeafOptions = {}): Promise<IssuedCertificate> {
  const keys = options.keys ?? (await generateKeys(options.key));
  const signer = options.signedBy ?? ca.keys;
  const names = [options.commonName ?? 'alice'].flat();
  const extensions = [...leafExtensions(options)];
  const certificate = await x509.X509CertificateGenerator.create({
    serialNumber: options.serial ?? newSerial(),
    subject: new x509.Name([...names.map((name) => ({ CN: [{ utf8String: name }] })), ...(options.subject ?? [])]),
    issuer: ca.subject,
    notBefore: options.notBefore ?? daysAgo(1),
    notAfter: options.notAfter ?? daysAhead(30),
    signingAlgorithm: signingAlgorithm(signer, options.hash ?? 'SHA-256'),
    publicKey: keys.publicKey,
    signingKey: signer.privateKey,
    extensions,
  });
  if (options.subjectDer === undefined && options.md5 !== true) return toIssuedCertificate(certificate, keys);
  return toIssuedCertificate(certificate, keys, rewriteAndSign(Buffer.from(certificate.rawData), signer, options));
}

/** A server certificate for localhost. */
export const issueServer = (ca: IssuedCertificate, options: LeafOptions = {}): Promise<IssuedCertificate> =>
  issue(ca, {
    commonName: 'localhost',
    dnsNames: ['localhost', '*.example.test'],
    addresses: ['127.0.0.1', '::1'],
    extendedKeyUsage: [EKU.serverAuth],
    ...options,
  });

function* leafExtensions(options: LeafOptions): Generator<x509.Extension> {
  const { keyUsage = x509.KeyUsageFlags.digitalSignature, extendedKeyUsage = [EKU.clientAuth] } = options;
  yield new x509.BasicConstraintsExtension(options.ca ?? false, undefined, true);
  if (keyUsage !== null) yield new x509.KeyUsagesExtension(keyUsage, true);
  if (extendedKeyUsage !== null) yield new x509.ExtendedKeyUsageExtension([...extendedKeyUsage], false);
  const names: x509.JsonGeneralNames = [
    ...(options.emails ?? []).map((value) => ({ type: 'email' as const, value })),
    ...(options.userPrincipalNames ?? []).map((value) => ({ type: 'upn' as const, value })),
    ...(options.dnsNames ?? []).map((value) => ({ type: 'dns' as const, value })),
    ...(options.uris ?? []).map((value) => ({ type: 'url' as const, value })),
    ...(options.addresses ?? []).map((value) => ({ type: 'ip' as const, value })),
  ];
  if (names.length > 0) yield new x509.SubjectAlternativeNameExtension(names);
  for (const { oid, critical = false, value } of options.extensions ?? [])
    yield new x509.Extension(oid, critical, new Uint8Array(value));
}

export async function createCrl(ca: IssuedCertificate, options: CrlOptions = {}): Promise<IssuedCrl> {
  const signer = options.signedBy ?? ca.keys;
  const thisUpdate = options.thisUpdate ?? daysAgo(0.1);
  const nextUpdate = options.nextUpdate === undefined ? daysAhead(7) : options.nextUpdate;
  const crl = await x509.X509CrlGenerator.create({
    issuer: ca.subject,
    thisUpdate,
    ...(nextUpdate !== null && { nextUpdate }),
    entries: (options.revoked ?? []).map((entry) => ({
      serialNumber: typeof entry === 'string' ? entry : entry.serial,
      revocationDate: thisUpdate,
    })),
    extensions: [
      new x509.Extension('2.5.29.20', false, new Uint8Array(der(0x02, Buffer.from([options.number ?? 1])))),
      ...(options.extensions ?? []).map(
        ({ oid, critical = false, value }) => new x509.Extension(oid, critical, new Uint8Array(value)),
      ),
    ],
    signingAlgorithm: signingAlgorithm(signer, 'SHA-256'),
    signingKey: signer.privateKey,
  });
  const bytes = Buffer.from(crl.rawData);
  // @peculiar/x509 uses the label `CRL`; RFC 7468 §6 requires `X509 CRL`.
  return { pem: toPem('X509 CRL', bytes), der: bytes };
}

/** Writes files into a folder and returns their paths under the same names. */
export function writePki<Names extends string>(
  folder: string,
  files: Readonly<Record<Names, string | Buffer>>,
): Record<Names, string> {
  const paths = {} as Record<Names, string>;
  for (const [name, content] of Object.entries(files) as [Names, string | Buffer][]) {
    paths[name] = join(folder, name);
    writeFileSync(paths[name], content, { mode: 0o600 });
  }
  return paths;
}

/** One DER element: tag, minimal length, content. */
export function der(tag: number, ...parts: readonly Uint8Array[]): Buffer {
  const content = Buffer.concat(parts);
  if (content.length < 0x80) return Buffer.concat([Buffer.from([tag, content.length]), content]);
  const size: number[] = [];
  for (let rest = content.length; rest > 0; rest = Math.floor(rest / 256)) size.unshift(rest % 256);
  return Buffer.concat([Buffer.from([tag, 0x80 | size.length, ...size]), content]);
}

function derOid(oid: string): Buffer {
  const [first = 0, second = 0, ...rest] = oid.split('.').map(Number);
  const bytes = [first * 40 + second, ...rest].flatMap((arc) => {
    const septets = [arc % 128];
    for (let left = Math.floor(arc / 128); left > 0; left = Math.floor(left / 128))
      septets.unshift(0x80 | (left % 128));
    return septets;
  });
  return der(0x06, Buffer.from(bytes));
}

/** A Name of common names in the given string types: `derName([0x1e, bmpBytes])`. */
export const derName = (...commonNames: readonly (readonly [tag: number, content: Uint8Array])[]): Buffer =>
  der(0x30, ...commonNames.map(([tag, content]) => der(0x31, der(0x30, derOid('2.5.4.3'), der(tag, content)))));

/** A subjectAltName extension holding exactly these GeneralName elements. */
export const sanExtension = (...names: readonly Uint8Array[]): RawExtension => ({
  oid: '2.5.29.17',
  value: der(0x30, ...names),
});

/** A GeneralName otherName: `otherName(UPN, der(0x0c, Buffer.from('alice@corp')))`. */
export const otherName = (oid: string, value: Uint8Array): Buffer => der(0xa0, derOid(oid), der(0xa0, value));

export const UPN = '1.3.6.1.4.1.311.20.2.3';

const MD5_WITH_RSA = der(0x30, derOid('1.2.840.113549.1.1.4'), der(0x05));

/** The children of a constructed element, including their headers. Only for the output of @peculiar/x509. */
function children(bytes: Buffer): Buffer[] {
  const found: Buffer[] = [];
  const readHeader = (at: number): readonly [header: number, length: number] => {
    const first = bytes[at + 1] ?? 0;
    if (first < 0x80) return [2, first];
    return [2 + (first & 0x7f), bytes.readUIntBE(at + 2, first & 0x7f)];
  };
  const [header] = readHeader(0);
  for (let at = header; at < bytes.length; ) {
    const [head, length] = readHeader(at);
    found.push(bytes.subarray(at, at + head + length));
    at += head + length;
  }
  return found;
}

/** Applies changes that a library refuses to make, and signs the result again. */
function rewriteAndSign(bytes: Buffer, signer: webcrypto.CryptoKeyPair, options: LeafOptions): Buffer {
  const [tbs = bytes, algorithm = bytes] = children(bytes);
  const written = options.md5 === true ? MD5_WITH_RSA : algorithm;
  const fields = children(tbs).map((field, index) => {
    if (index === 2) return written;
    return index === 5 && options.subjectDer !== undefined ? options.subjectDer : field;
  });
  const signed = der(0x30, ...fields);
  const key = KeyObject.from(signer.privateKey);
  const hash = options.md5 === true ? 'md5' : (options.hash ?? 'SHA-256').replace('-', '').toLowerCase();
  const signature = sign(key.asymmetricKeyType === 'ed25519' ? null : hash, signed, key);
  return der(0x30, signed, written, der(0x03, Buffer.from([0]), signature));
}
