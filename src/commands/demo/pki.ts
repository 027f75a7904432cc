import { createPrivateKey, generateKeyPairSync, type KeyObject, X509Certificate } from 'node:crypto';
import { join } from 'node:path';
import { createCertificate, type NamePart } from './certificate.ts';
import { createPrivateFolder, readIfExists, writePrivateFile } from './files.ts';

/**
 * The development CA of the demo and its certificates. Missing, inconsistent, expired and soon expiring files are replaced;
 * everything else stays, so that clients can keep trusting `ca.pem`.
 */
export interface CertificateHolder {
  readonly name: string;
  readonly email: string;
}

export type RenewedNames = readonly string[];

const DAY = 86_400;
const CA_DAYS = 3_650;
const LEAF_DAYS = 365;
/** The CA must outlive its certificates; `gatehouse check` warns 30 days before expiry. */
const CA_RENEWAL_MARGIN = (LEAF_DAYS + 35) * DAY;
const LEAF_RENEWAL_MARGIN = 60 * DAY;
const CA_NAME: readonly NamePart[] = [
  ['commonName', 'gatehouse development CA'],
  ['organization', 'Only for this machine'],
];

/** Creates and renews the files in `folder`; returns the names of those it wrote. */
export async function ensurePki(
  folder: string,
  holders: readonly CertificateHolder[],
  now: number,
): Promise<RenewedNames> {
  createPrivateFolder(folder);
  const existing = readAuthority(folder, now);
  const leaves = [
    { name: 'server', isMatch: (leaf: X509Certificate) => leaf.checkHost('localhost') !== undefined },
    ...holders.map((holder) => ({
      name: holder.name,
      person: holder,
      isMatch: (leaf: X509Certificate) => leaf.subject === `CN=${holder.name}`,
    })),
  ];
  const outdated = leaves.filter(({ name, isMatch }) => {
    const leaf = existing && readCertificate(folder, name);
    return !(
      leaf &&
      isValidBeyond(leaf, now, LEAF_RENEWAL_MARGIN) &&
      isMatch(leaf) &&
      leaf.verify(existing.certificate.publicKey)
    );
  });
  if (existing !== undefined && outdated.length === 0) return [];

  const authority = existing?.authority ?? createAuthority(now);
  if (existing === undefined) {
    writePrivateFile(join(folder, 'ca.pem'), authority.pem);
    writePrivateFile(join(folder, 'ca-key.pem'), authority.keyPem);
  }
  for (const { name, ...leaf } of outdated) {
    const leafPair = createLeaf(authority, 'person' in leaf ? leaf.person : undefined, now);
    writePrivateFile(join(folder, `${name}.pem`), leafPair.pem);
    writePrivateFile(join(folder, `${name}-key.pem`), leafPair.keyPem);
  }
  return [...(existing === undefined ? ['ca'] : []), ...outdated.map(({ name }) => name)];
}

interface PemPair {
  readonly pem: string;
  readonly keyPem: string;
}

function readAuthority(
  folder: string,
  now: number,
): { readonly certificate: X509Certificate; readonly authority: PemPair } | undefined {
  const certificate = readCertificate(folder, 'ca');
  if (certificate === undefined || !certificate.ca || !isValidBeyond(certificate, now, CA_RENEWAL_MARGIN))
    return undefined;
  const keyPem = readIfExists(join(folder, 'ca-key.pem')) ?? '';
  return { certificate, authority: { pem: certificate.toString(), keyPem } };
}

/** Undefined when certificate or key is missing or unreadable, or when they do not match. */
function readCertificate(folder: string, name: string): X509Certificate | undefined {
  const pem = readIfExists(join(folder, `${name}.pem`));
  const keyPem = readIfExists(join(folder, `${name}-key.pem`));
  if (pem === undefined || keyPem === undefined) return undefined;
  try {
    const certificate = new X509Certificate(pem);
    return certificate.checkPrivateKey(createPrivateKey(keyPem)) ? certificate : undefined;
  } catch {
    return undefined;
  }
}

const isValidBeyond = (
  { validFromDate, validToDate }: X509Certificate,
  now: number,
  margin: number,
): boolean => validFromDate.getTime() <= now * 1_000 && validToDate.getTime() > (now + margin) * 1_000;

const generateKey = (): KeyObject => generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey;
const exportPem = (key: KeyObject): string => key.export({ type: 'pkcs8', format: 'pem' });
const createValidity = (now: number, days: number) => ({
  notBefore: new Date((now - 3_600) * 1_000),
  notAfter: new Date((now + days * DAY) * 1_000),
});

function createAuthority(now: number): PemPair {
  const key = generateKey();
  const pem = createCertificate({
    subject: CA_NAME,
    publicKey: key,
    signingKey: key,
    ...createValidity(now, CA_DAYS),
    use: 'ca',
  });
  return { pem, keyPem: exportPem(key) };
}

function createLeaf(authority: PemPair, holder: CertificateHolder | undefined, now: number): PemPair {
  const key = generateKey();
  const pem = createCertificate({
    subject: [['commonName', holder?.name ?? 'localhost']],
    issuer: authority.pem,
    publicKey: key,
    signingKey: createPrivateKey(authority.keyPem),
    ...createValidity(now, LEAF_DAYS),
    use: holder === undefined ? 'server' : 'client',
    names:
      holder === undefined
        ? [
            { dns: 'localhost' },
            { ip: Buffer.of(127, 0, 0, 1) },
            { ip: Buffer.concat([Buffer.alloc(15), Buffer.of(1)]) },
          ]
        : [{ email: holder.email }],
  });
  return { pem, keyPem: exportPem(key) };
}
