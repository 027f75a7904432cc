import { createPrivateKey, generateKeyPairSync, type KeyObject, X509Certificate } from 'node:crypto';
import { join } from 'node:path';
import { makeCertificate, type NamePart } from './demo-certificate.ts';
import { makeFolder, readIfThere, writeOwn } from './demo-files.ts';

/**
 * The development authority of the demo and what it issues. Whatever is missing, does not belong together, has
 * ended or is near its end is made anew; everything else stays, so that a browser or a script that trusts
 * `ca.pem` goes on trusting it.
 */
export interface DemoPerson {
  readonly name: string;
  readonly email: string;
}

export type Renewed = readonly string[];

const DAY = 86_400;
const CA_DAYS = 3_650;
const LEAF_DAYS = 365;
/** The authority must outlive what it issues; `gatehouse check` warns 30 days before an end. */
const CA_MARGIN = (LEAF_DAYS + 35) * DAY;
const LEAF_MARGIN = 60 * DAY;
const CA_NAME: readonly NamePart[] = [
  ['commonName', 'gatehouse development CA'],
  ['organization', 'Only for this machine'],
];

/** Makes and renews the files in `folder`; tells the names of those it wrote. `now` is in seconds. */
export async function ensurePki(
  folder: string,
  people: readonly DemoPerson[],
  now: number,
): Promise<Renewed> {
  makeFolder(folder);
  const kept = keptAuthority(folder, now);
  const leaves = [
    { name: 'server', fits: (leaf: X509Certificate) => leaf.checkHost('localhost') !== undefined },
    ...people.map((person) => ({
      name: person.name,
      person,
      fits: (leaf: X509Certificate) => leaf.subject === `CN=${person.name}`,
    })),
  ];
  const old = leaves.filter(({ name, fits }) => {
    const leaf = kept && pairIn(folder, name);
    return !(leaf && lasts(leaf, now, LEAF_MARGIN) && fits(leaf) && leaf.verify(kept.certificate.publicKey));
  });
  if (kept !== undefined && old.length === 0) return [];

  const authority = kept?.authority ?? newAuthority(now);
  if (kept === undefined) {
    writeOwn(join(folder, 'ca.pem'), authority.pem);
    writeOwn(join(folder, 'ca-key.pem'), authority.keyPem);
  }
  for (const { name, ...leaf } of old) {
    const made = newLeaf(authority, 'person' in leaf ? leaf.person : undefined, now);
    writeOwn(join(folder, `${name}.pem`), made.pem);
    writeOwn(join(folder, `${name}-key.pem`), made.keyPem);
  }
  return [...(kept === undefined ? ['ca'] : []), ...old.map(({ name }) => name)];
}

interface Pair {
  readonly pem: string;
  readonly keyPem: string;
}

function keptAuthority(
  folder: string,
  now: number,
): { readonly certificate: X509Certificate; readonly authority: Pair } | undefined {
  const certificate = pairIn(folder, 'ca');
  if (certificate === undefined || !certificate.ca || !lasts(certificate, now, CA_MARGIN)) return undefined;
  const keyPem = readIfThere(join(folder, 'ca-key.pem')) ?? '';
  return { certificate, authority: { pem: certificate.toString(), keyPem } };
}

/** A certificate whose key lies beside it; undefined when either is missing, unreadable or of another pair. */
function pairIn(folder: string, name: string): X509Certificate | undefined {
  const pem = readIfThere(join(folder, `${name}.pem`));
  const keyPem = readIfThere(join(folder, `${name}-key.pem`));
  if (pem === undefined || keyPem === undefined) return undefined;
  try {
    const certificate = new X509Certificate(pem);
    return certificate.checkPrivateKey(createPrivateKey(keyPem)) ? certificate : undefined;
  } catch {
    return undefined;
  }
}

const lasts = ({ validFromDate, validToDate }: X509Certificate, now: number, margin: number): boolean =>
  validFromDate.getTime() <= now * 1_000 && validToDate.getTime() > (now + margin) * 1_000;

const newKey = (): KeyObject => generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey;
const pemOf = (key: KeyObject): string => key.export({ type: 'pkcs8', format: 'pem' });
const validity = (now: number, days: number) => ({
  notBefore: new Date((now - 3_600) * 1_000),
  notAfter: new Date((now + days * DAY) * 1_000),
});

function newAuthority(now: number): Pair {
  const key = newKey();
  const pem = makeCertificate({
    subject: CA_NAME,
    publicKey: key,
    signingKey: key,
    ...validity(now, CA_DAYS),
    use: 'ca',
  });
  return { pem, keyPem: pemOf(key) };
}

function newLeaf(authority: Pair, person: DemoPerson | undefined, now: number): Pair {
  const key = newKey();
  const pem = makeCertificate({
    subject: [['commonName', person?.name ?? 'localhost']],
    issuer: authority.pem,
    publicKey: key,
    signingKey: createPrivateKey(authority.keyPem),
    ...validity(now, LEAF_DAYS),
    use: person === undefined ? 'server' : 'client',
    names:
      person === undefined
        ? [
            { dns: 'localhost' },
            { ip: Buffer.of(127, 0, 0, 1) },
            { ip: Buffer.concat([Buffer.alloc(15), Buffer.of(1)]) },
          ]
        : [{ email: person.email }],
  });
  return { pem, keyPem: pemOf(key) };
}
