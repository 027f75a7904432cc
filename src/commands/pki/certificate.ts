import {
  createHash,
  createPrivateKey,
  createPublicKey,
  generateKeyPairSync,
  type KeyObject,
  randomBytes,
  sign,
  X509Certificate,
} from 'node:crypto';
import { isIP } from 'node:net';
import { approveIssuer } from '../../x509/approved-issuer.ts';
import { parseCrlFile } from '../../x509/crl-set.ts';
import { children, writeElement as element, readElement, readIntegerHex, TAG } from '../../x509/der.ts';
import { parsePem } from '../../x509/pem.ts';
import { readSignedStructure } from '../../x509/signature.ts';

/** A certificate and its key. */
export interface PemPair {
  readonly pem: string;
  readonly keyPem: string;
}

interface CertificateOptions {
  /** The CA that signs. If omitted, the certificate signs itself. */
  readonly authority?: PemPair;
  readonly use: 'ca' | 'server' | 'client';
  readonly subject: readonly NamePart[];
  /** DNS names and IP addresses. */
  readonly hosts?: readonly string[];
  readonly email?: string | undefined;
  /** Seconds. */
  readonly now: number;
  readonly days: number;
  /** The end of the CA, which its certificates must not outlive. */
  readonly latest?: Date;
}

export type NamePart = readonly [attribute: 'commonName' | 'organization', value: string];

export const LOOPBACK_HOSTS: readonly string[] = ['localhost', '127.0.0.1', '::1'];

/**
 * Creates X.509 certificates (RFC 5280) for development: Node cannot create certificates, and a package would be installed in
 * production for development alone. ECDSA with P-256 and SHA-256 only.
 */
export function createPair(options: CertificateOptions): PemPair {
  const { authority, subject, now, days, latest } = options;
  const { privateKey: key } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const signingKey = authority === undefined ? key : createPrivateKey(authority.keyPem);
  const end = Math.min((now + days * 86_400) * 1_000, latest?.getTime() ?? Number.POSITIVE_INFINITY);
  const tbs = sequence(
    tagged(0, integer(Buffer.of(2))),
    // RFC 5280 §4.1.2.2: positive, at most 20 octets.
    integer(Buffer.concat([Buffer.of(0x4d), randomBytes(15)])),
    ECDSA_SHA256,
    authority === undefined ? encodeName(subject) : readSubject(authority.pem),
    // Begins an hour ago, for clocks that are late.
    sequence(encodeTime(new Date((now - 3_600) * 1_000)), encodeTime(new Date(end))),
    encodeName(subject),
    exportSpki(key),
    tagged(3, sequence(...encodeExtensions(options, key, signingKey))),
  );
  return {
    pem: signToPem('CERTIFICATE', tbs, signingKey),
    keyPem: key.export({ type: 'pkcs8', format: 'pem' }),
  };
}

function encodeExtensions(
  { use, hosts = [], email }: CertificateOptions,
  publicKey: KeyObject,
  signingKey: KeyObject,
): Buffer[] {
  const isCa = use === 'ca';
  const names = [...hosts.map(encodeHost), ...(email === undefined ? [] : [element(0x81, Buffer.from(email))])];
  return [
    // §4.2.1.9: a CA with path length 0, or not a CA.
    encodeExtension('551d13', true, isCa ? sequence(TRUE, integer(Buffer.of(0))) : sequence()),
    // §4.2.1.3: keyCertSign and cRLSign, or digitalSignature.
    encodeExtension('551d0f', true, isCa ? bitString(Buffer.of(0x06), 1) : bitString(Buffer.of(0x80), 7)),
    // §4.2.1.12: serverAuth or clientAuth.
    ...(isCa ? [] : [encodeExtension('551d25', false, sequence(oid(`2b0601050507030${use === 'server' ? 1 : 2}`)))]),
    ...(names.length === 0 ? [] : [encodeExtension('551d11', false, sequence(...names))]),
    ...(isCa ? [] : [encodeKeyReference(signingKey)]),
    encodeExtension('551d0e', false, octetString(computeKeyId(publicKey))),
  ];
}

/** §4.2.1.6: a DNS name, or 4 or 16 bytes of an IP address. */
function encodeHost(host: string): Buffer {
  if (isIP(host) === 0) return element(0x82, Buffer.from(host));
  if (isIP(host) === 4) return element(0x87, Buffer.from(host.split('.').map(Number)));
  // The parser of URLs replaces an IPv4 address at the end, and leaves at most one `::`.
  const [head = '', tail] = new URL(`http://[${host}]`).hostname.slice(1, -1).split('::');
  const parse = (text = ''): number[] =>
    text === '' ? [] : text.split(':').map((group) => Number.parseInt(group, 16));
  const [first, last] = [parse(head), parse(tail)];
  const groups = [...first, ...Array<number>(8 - first.length - last.length).fill(0), ...last];
  return element(0x87, Buffer.from(groups.flatMap((group) => [group >> 8, group & 0xff])));
}

const ATTRIBUTES = { commonName: '550403', organization: '55040a' } as const;

const encodeName = (parts: readonly NamePart[]): Buffer =>
  sequence(
    ...parts.map(([attribute, value]) =>
      element(0x31, sequence(oid(ATTRIBUTES[attribute]), element(0x0c, Buffer.from(value)))),
    ),
  );

/** What certificates and revocation lists (RFC 5280) have in common. ECDSA with P-256 and SHA-256 only. */
export const sequence = (...parts: readonly Buffer[]): Buffer => element(TAG.sequence, ...parts);
export const tagged = (number: number, content: Buffer): Buffer => element(0xa0 + number, content);
const oid = (hex: string): Buffer => element(0x06, Buffer.from(hex, 'hex'));
/** Positive only: the first bit of `bytes` must be 0. */
export const integer = (bytes: Buffer): Buffer => element(TAG.integer, bytes);
const octetString = (bytes: Buffer): Buffer => element(0x04, bytes);
const bitString = (bytes: Buffer, unused: number): Buffer => element(0x03, Buffer.of(unused), bytes);
const TRUE: Buffer = element(0x01, Buffer.of(0xff));
const ECDSA_SHA256: Buffer = sequence(oid('2a8648ce3d040302'));

const encodeExtension = (id: string, critical: boolean, value: Buffer): Buffer =>
  sequence(oid(id), ...(critical ? [TRUE] : []), octetString(value));

/** §4.2.1.1: the authority key identifier. */
const encodeKeyReference = (issuerKey: KeyObject): Buffer =>
  encodeExtension('551d23', false, sequence(element(0x80, computeKeyId(issuerKey))));

/** §4.1.2.5: UTCTime until 2049, then GeneralizedTime. */
function encodeTime(date: Date): Buffer {
  const digits = `${date.toISOString().replace(/[-:T]|\..*$/g, '')}Z`;
  return date.getUTCFullYear() < 2_050
    ? element(TAG.utcTime, Buffer.from(digits.slice(2)))
    : element(TAG.generalizedTime, Buffer.from(digits));
}

/** Copied byte by byte from the issuer (§4.1.2.4), whose encoding may differ from ours. */
function readSubject(pem: string): Buffer {
  const [tbs] = children(readElement(new X509Certificate(pem).raw, TAG.sequence));
  const subject = tbs && children(tbs)[5];
  if (subject === undefined) throw new Error('the CA certificate has no subject');
  return subject.encoded;
}

function signToPem(label: 'CERTIFICATE' | 'X509 CRL', tbs: Buffer, key: KeyObject): string {
  const der = sequence(tbs, ECDSA_SHA256, bitString(sign('sha256', tbs, key), 0));
  const lines = der.toString('base64').match(/.{1,64}/g) ?? [];
  return `-----BEGIN ${label}-----\n${lines.join('\n')}\n-----END ${label}-----\n`;
}

const toPublicKey = (key: KeyObject): KeyObject => (key.type === 'private' ? createPublicKey(key) : key);
const exportSpki = (key: KeyObject): Buffer => toPublicKey(key).export({ type: 'spki', format: 'der' });

/** §4.2.1.2 (1): SHA-1 of the public key, which is the last 65 bytes of the SPKI for P-256. */
const computeKeyId = (key: KeyObject): Buffer => createHash('sha1').update(exportSpki(key).subarray(-65)).digest();

/** An entry of a list, as encoded there: the revocation date of an earlier one is kept. */
interface RevokedEntry {
  /** Hex. */
  readonly serial: string;
  readonly encoded: Buffer;
}

/**
 * A revocation list (RFC 5280 §5), PEM: the entries of `previous` and these certificates of the same CA. It is valid as long as
 * the CA is, since nothing renews it.
 */
export function createCrl(
  authority: PemPair,
  revoked: readonly X509Certificate[],
  previous: string | undefined,
  now: Date,
): string {
  const earlier = previous === undefined ? [] : readEntries(authority, previous);
  const known = new Set(earlier.map(({ serial }) => serial));
  const added = revoked
    .map(({ serialNumber }) => encodeEntry(serialNumber, now))
    .filter(({ serial }) => !known.has(serial));
  const key = createPrivateKey(authority.keyPem);
  const extensions = sequence(
    encodeKeyReference(key),
    // §5.2.3: each list needs a larger number. Milliseconds: 41 bits.
    encodeExtension('551d14', false, integer(Buffer.from(now.getTime().toString(16).padStart(12, '0'), 'hex'))),
  );
  const tbs = sequence(
    integer(Buffer.of(1)),
    ECDSA_SHA256,
    readSubject(authority.pem),
    encodeTime(now),
    encodeTime(new X509Certificate(authority.pem).validToDate),
    sequence(...[...earlier, ...added].map(({ encoded }) => encoded)),
    tagged(0, extensions),
  );
  return signToPem('X509 CRL', tbs, key);
}

function encodeEntry(serialNumber: string, date: Date): RevokedEntry {
  const bytes = Buffer.from(serialNumber.padStart(serialNumber.length + (serialNumber.length % 2), '0'), 'hex');
  const content = (bytes[0] ?? 0) >= 0x80 ? Buffer.concat([Buffer.of(0), bytes]) : bytes;
  return { serial: content.toString('hex'), encoded: sequence(integer(content), encodeTime(date)) };
}

/** Throws an `Error` whose message completes "<file> …", also for a list that another CA has signed. */
function readEntries({ pem }: PemPair, list: string): readonly RevokedEntry[] {
  const bytes = Buffer.from(list);
  const certificate = new X509Certificate(pem).raw;
  const issuer = approveIssuer({ name: 'CA', certificate, directory: '', identityFrom: 'commonName' });
  parseCrlFile('', bytes, [issuer]);
  return [...parsePem(bytes)].flatMap(({ decode }) => {
    const sequences = readSignedStructure(decode()).fields.filter(({ tag }) => tag === TAG.sequence);
    // After the algorithm and the issuer; missing in an empty list.
    const entries = sequences[2] === undefined ? [] : children(sequences[2]);
    return entries.map((entry) => ({ serial: readIntegerHex(children(entry)[0]), encoded: entry.encoded }));
  });
}
