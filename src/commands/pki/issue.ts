import { createPrivateKey, generateKeyPairSync, type KeyObject } from 'node:crypto';
import { isIP } from 'node:net';
import { type AlternativeName, createCertificate, type NamePart } from './certificate.ts';

/** A certificate and its key. */
export interface PemPair {
  readonly pem: string;
  readonly keyPem: string;
}

export interface Validity {
  /** Seconds. */
  readonly now: number;
  readonly days: number;
  /** The end of the CA, which its certificates must not outlive. */
  readonly latest?: Date;
}

export const LOOPBACK_HOSTS: readonly string[] = ['localhost', '127.0.0.1', '::1'];

/** A self-signed CA. */
export function createAuthority(subject: readonly NamePart[], validity: Validity): PemPair {
  const key = generateKey();
  const pem = createCertificate({
    subject,
    publicKey: key,
    signingKey: key,
    ...createPeriod(validity),
    use: 'ca',
  });
  return { pem, keyPem: exportPem(key) };
}

/** `hosts`: DNS names and IP addresses. */
export const createServer = (
  authority: PemPair,
  { subject, hosts }: { readonly subject: readonly NamePart[]; readonly hosts: readonly string[] },
  validity: Validity,
): PemPair => issue(authority, 'server', subject, hosts.map(toAlternativeName), validity);

export const createClient = (
  authority: PemPair,
  { subject, email }: { readonly subject: readonly NamePart[]; readonly email: string | undefined },
  validity: Validity,
): PemPair => issue(authority, 'client', subject, email === undefined ? [] : [{ email }], validity);

function issue(
  authority: PemPair,
  use: 'server' | 'client',
  subject: readonly NamePart[],
  names: readonly AlternativeName[],
  validity: Validity,
): PemPair {
  const key = generateKey();
  const pem = createCertificate({
    subject,
    issuer: authority.pem,
    publicKey: key,
    signingKey: createPrivateKey(authority.keyPem),
    ...createPeriod(validity),
    use,
    names,
  });
  return { pem, keyPem: exportPem(key) };
}

const DAY = 86_400;

const generateKey = (): KeyObject => generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey;
const exportPem = (key: KeyObject): string => key.export({ type: 'pkcs8', format: 'pem' });

/** Begins an hour ago, for clocks that are late. */
const createPeriod = ({ now, days, latest }: Validity) => ({
  notBefore: new Date((now - 3_600) * 1_000),
  notAfter: new Date(Math.min((now + days * DAY) * 1_000, latest?.getTime() ?? Number.POSITIVE_INFINITY)),
});

const toAlternativeName = (host: string): AlternativeName =>
  isIP(host) === 0 ? { dns: host } : { ip: encodeIpAddress(host) };

/** 4 or 16 bytes. */
function encodeIpAddress(address: string): Buffer {
  if (isIP(address) === 4) return Buffer.from(address.split('.').map(Number));
  // The parser of URLs replaces an IPv4 address at the end, and leaves at most one `::`.
  const [head = '', tail] = new URL(`http://[${address}]`).hostname.slice(1, -1).split('::');
  const parse = (text = ''): number[] =>
    text === '' ? [] : text.split(':').map((group) => Number.parseInt(group, 16));
  const [first, last] = [parse(head), parse(tail)];
  const groups = [...first, ...Array<number>(8 - first.length - last.length).fill(0), ...last];
  return Buffer.from(groups.flatMap((group) => [group >> 8, group & 0xff]));
}
