import { createPrivateKey, randomBytes, X509Certificate } from 'node:crypto';
import { join } from 'node:path';
import type { NamePart } from '../pki/certificate.ts';
import { createAuthority, createClient, createServer, LOOPBACK_HOSTS, type PemPair } from '../pki/issue.ts';
import { createPrivateFolder, readIfExists, writePrivateFile } from '../pki/private-files.ts';

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
/** Distinguishable from the CA of another demo in logs. */
const createCaName = (): readonly NamePart[] => [
  ['commonName', `gatehouse demo CA ${randomBytes(4).toString('hex')}`],
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

  const authority = existing?.authority ?? createAuthority(createCaName(), { now, days: CA_DAYS });
  if (existing === undefined) {
    writePrivateFile(join(folder, 'ca.pem'), authority.pem);
    writePrivateFile(join(folder, 'ca-key.pem'), authority.keyPem);
  }
  for (const { name, ...leaf } of outdated) {
    const validity = { now, days: LEAF_DAYS };
    const leafPair =
      'person' in leaf
        ? createClient(authority, { subject: [['commonName', name]], email: leaf.person.email }, validity)
        : createServer(authority, { subject: [['commonName', 'localhost']], hosts: LOOPBACK_HOSTS }, validity);
    writePrivateFile(join(folder, `${name}.pem`), leafPair.pem);
    writePrivateFile(join(folder, `${name}-key.pem`), leafPair.keyPem);
  }
  return [...(existing === undefined ? ['ca'] : []), ...outdated.map(({ name }) => name)];
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

const isValidBeyond = ({ validFromDate, validToDate }: X509Certificate, now: number, margin: number): boolean =>
  validFromDate.getTime() <= now * 1_000 && validToDate.getTime() > (now + margin) * 1_000;
