import { createPrivateKey, KeyObject, randomBytes, webcrypto, X509Certificate } from 'node:crypto';
import { join } from 'node:path';
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
const CA_NAME = 'CN=gatehouse development CA, O=Only for this machine';
const ECDSA = { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' } as const;

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

  const mint = await openMint(now);
  const authority = kept?.authority ?? (await mint.authority());
  if (kept === undefined) {
    writeOwn(join(folder, 'ca.pem'), authority.pem);
    writeOwn(join(folder, 'ca-key.pem'), authority.keyPem);
  }
  for (const { name, ...leaf } of old) {
    const made = await mint.leaf(authority, 'person' in leaf ? leaf.person : undefined);
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

/** The certificate library is heavy and needed only here, so it is loaded only when something must be made. */
async function openMint(now: number) {
  await import('reflect-metadata');
  const x509 = await import('@peculiar/x509');
  const newKeys = (): Promise<webcrypto.CryptoKeyPair> =>
    webcrypto.subtle.generateKey(ECDSA, true, ['sign', 'verify']);
  const pemOf = (keys: webcrypto.CryptoKeyPair): string =>
    KeyObject.from(keys.privateKey).export({ type: 'pkcs8', format: 'pem' });
  // RFC 5280 §4.1.2.2: positive, at most 20 octets.
  const serialNumber = (): string => `4d${randomBytes(15).toString('hex')}`;
  const validity = (days: number) => ({
    notBefore: new Date((now - 3_600) * 1_000),
    notAfter: new Date((now + days * DAY) * 1_000),
  });

  return {
    async authority(): Promise<Pair> {
      const keys = await newKeys();
      const certificate = await x509.X509CertificateGenerator.createSelfSigned({
        serialNumber: serialNumber(),
        name: CA_NAME,
        ...validity(CA_DAYS),
        signingAlgorithm: ECDSA,
        keys,
        extensions: [
          new x509.BasicConstraintsExtension(true, 0, true),
          new x509.KeyUsagesExtension(x509.KeyUsageFlags.keyCertSign | x509.KeyUsageFlags.cRLSign, true),
          await x509.SubjectKeyIdentifierExtension.create(keys.publicKey),
        ],
      });
      return { pem: `${certificate.toString('pem')}\n`, keyPem: pemOf(keys) };
    },

    async leaf(authority: Pair, person: DemoPerson | undefined): Promise<Pair> {
      const keys = await newKeys();
      const issuer = new x509.X509Certificate(authority.pem);
      const signingKey = await webcrypto.subtle.importKey(
        'pkcs8',
        createPrivateKey(authority.keyPem).export({ type: 'pkcs8', format: 'der' }),
        ECDSA,
        false,
        ['sign'],
      );
      const names =
        person === undefined
          ? [
              { type: 'dns' as const, value: 'localhost' },
              { type: 'ip' as const, value: '127.0.0.1' },
              { type: 'ip' as const, value: '::1' },
            ]
          : [{ type: 'email' as const, value: person.email }];
      const usage = person === undefined ? 'serverAuth' : 'clientAuth';
      const certificate = await x509.X509CertificateGenerator.create({
        serialNumber: serialNumber(),
        subject: `CN=${person?.name ?? 'localhost'}`,
        issuer: issuer.subject,
        ...validity(LEAF_DAYS),
        signingAlgorithm: ECDSA,
        publicKey: keys.publicKey,
        signingKey,
        extensions: [
          new x509.BasicConstraintsExtension(false, undefined, true),
          new x509.KeyUsagesExtension(x509.KeyUsageFlags.digitalSignature, true),
          new x509.ExtendedKeyUsageExtension([x509.ExtendedKeyUsage[usage]]),
          new x509.SubjectAlternativeNameExtension(names),
          await x509.AuthorityKeyIdentifierExtension.create(issuer),
          await x509.SubjectKeyIdentifierExtension.create(keys.publicKey),
        ],
      });
      return { pem: `${certificate.toString('pem')}\n`, keyPem: pemOf(keys) };
    },
  };
}
