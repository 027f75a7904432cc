import { createPrivateKey, type KeyObject, X509Certificate } from 'node:crypto';
import type { Epoch } from '../domain/epoch.ts';
import type { NameSource } from '../ports/directory.ts';
import { type ApprovedIssuer, approveIssuer } from './approved-issuer.ts';
import { PemError, readPem } from './pem.ts';
import { type RevocationFiles, revocationFiles } from './revocation-files.ts';
import { type RevocationList, type RevocationLists, revocationLists } from './revocation-lists.ts';
import { readWhole } from './revocation-read.ts';

/** Files that cannot be used. Every problem names its file; whoever asked keeps what it had. */
export class CertificateFilesError extends Error {
  readonly problems: readonly string[];

  constructor(problems: readonly string[]) {
    super(problems.join('; '));
    this.name = 'CertificateFilesError';
    this.problems = problems;
  }
}

export interface ServerCertificate {
  /** The chain and its key, PEM: ready for a secure context. */
  readonly certificate: string;
  readonly key: string;
  readonly notAfter: Epoch;
}

export interface CertificateFiles {
  readonly server?: ServerCertificate;
  readonly issuers: readonly ApprovedIssuer[];
  readonly crls: RevocationLists;
  /** What an operator should know though it works today. */
  readonly warnings: readonly string[];
}

export interface CertificateFileNames {
  readonly server?: { readonly certificate: string; readonly key: string };
  readonly issuers: readonly {
    readonly name: string;
    readonly file: string;
    readonly directory: string;
    readonly identityFrom: NameSource;
  }[];
  readonly crls: readonly string[];
}

export interface CertificateFilesContext {
  /** Remembers parsed revocation lists across reloads. */
  readonly revocations?: RevocationFiles;
  /** The files in force. Their revocation lists may only be replaced by newer ones. */
  readonly before?: CertificateFiles | undefined;
}

const SOON = 30 * 86_400;

/** Reads everything and reports all problems at once, as one `CertificateFilesError`. */
export async function loadCertificateFiles(
  names: CertificateFileNames,
  now: Epoch,
  { revocations = revocationFiles(), before }: CertificateFilesContext = {},
): Promise<CertificateFiles> {
  const problems: string[] = [];
  const attempt = <T>(file: string, work: () => T): T | undefined => {
    try {
      return work();
    } catch (error) {
      if (error instanceof CertificateFilesError) problems.push(...error.problems);
      else problems.push(`${file}: ${(error as Error).message}`);
      return undefined;
    }
  };

  const { server: files } = names;
  // Of a pair that is not there, both are told.
  const chain = files && attempt(files.certificate, () => readText(files.certificate));
  const key = files && attempt(files.key, () => readText(files.key));
  const server =
    files === undefined || chain === undefined || key === undefined
      ? undefined
      : attempt(files.certificate, () => loadServerCertificate(files, chain, key, now));
  const issuers = names.issuers.flatMap(
    (issuer) => attempt(issuer.file, () => loadIssuers(issuer, now)) ?? [],
  );
  problems.push(...sameKeyTwice(issuers));
  const { lists, problems: unusable } = await revocations.load(names.crls, issuers);
  problems.push(...unusable);
  // Certificates of an issuer that has expired are not accepted anyway.
  const inForce = issuers.filter(({ facts }) => facts.notAfter >= now);
  const lost =
    before === undefined || problems.length > 0 ? [] : lostLists(before.crls.lists, lists, inForce);
  // A file that was taken out of the configuration was taken out on purpose.
  problems.push(...lost.filter(({ file }) => names.crls.includes(file)).map(refusalOf));
  if (problems.length > 0) throw new CertificateFilesError(problems);

  const crls = revocationLists(lists);
  const warnings = [
    ...(files !== undefined && server !== undefined ? nearEnd(files.certificate, server.notAfter, now) : []),
    ...names.issuers.flatMap(({ name, file }) =>
      issuers
        .filter((issuer) => issuer.name === name)
        .flatMap(({ facts }) => nearEnd(file, facts.notAfter, now)),
    ),
    ...crls.warnings(now),
    ...lost.map(({ issuer, instead }) =>
      instead === undefined
        ? `certificates.crls: no revocation list of ${issuer} is loaded any more; revoked certificates of this issuer are accepted unless certificates.requireCrl is set`
        : `${instead.file}: the revocation list of ${issuer} is older than the one before it`,
    ),
  ];
  return { ...(server !== undefined && { server }), issuers, crls, warnings };
}

interface LostList {
  /** Where it was. */
  readonly file: string;
  readonly issuer: string;
  /** What is there instead: an older list, or none. */
  readonly instead: RevocationList | undefined;
}

/** Lists of approved issuers that are gone, or replaced by older ones: what they revoke would be accepted again. */
function lostLists(
  before: readonly RevocationList[],
  lists: readonly RevocationList[],
  issuers: readonly ApprovedIssuer[],
): LostList[] {
  const approved = new Set(issuers.map(({ keyFingerprint }) => keyFingerprint));
  const newest = newestOf(lists);
  return [...newestOf(before).values()].flatMap(({ issuerKey, issuer, file, thisUpdate }) => {
    const instead = newest.get(issuerKey);
    const isLost = instead === undefined || instead.thisUpdate < thisUpdate;
    return approved.has(issuerKey) && isLost ? [{ file, issuer, instead }] : [];
  });
}

function newestOf(lists: readonly RevocationList[]): ReadonlyMap<string, RevocationList> {
  const newest = new Map<string, RevocationList>();
  for (const list of lists) {
    const known = newest.get(list.issuerKey);
    if (known === undefined || known.thisUpdate < list.thisUpdate) newest.set(list.issuerKey, list);
  }
  return newest;
}

const refusalOf = ({ file, issuer, instead }: LostList): string =>
  instead === undefined
    ? `${file}: no longer holds the revocation list of ${issuer}; put it back, remove the issuer or the file from the configuration, or restart to go without it`
    : `${instead.file}: holds a revocation list of ${issuer} that is older than the one in force; put the newer one back, or restart to use the older one`;

/** By its key alone nobody could tell which of the two entries a certificate belongs to. */
function sameKeyTwice(issuers: readonly ApprovedIssuer[]): string[] {
  const known = new Map<string, ApprovedIssuer>();
  return issuers.flatMap((issuer) => {
    const other = known.get(issuer.keyFingerprint) ?? issuer;
    known.set(issuer.keyFingerprint, other);
    return other.directory === issuer.directory && other.identityFrom === issuer.identityFrom
      ? []
      : [
          `certificates.issuers: "${other.name}" and "${issuer.name}" have the same key and look names up in different ways`,
        ];
  });
}

const nearEnd = (file: string, notAfter: Epoch, now: Epoch): string[] =>
  notAfter - now < SOON ? [`${file}: expires on ${new Date(notAfter * 1_000).toISOString()}`] : [];

/** The server's certificate chain and key, after checking that they belong together and can be served today. */
function loadServerCertificate(
  files: { readonly certificate: string; readonly key: string },
  chain: string,
  keyText: string,
  now: Epoch,
): ServerCertificate {
  const refuse = (file: string, problem: string): never => {
    throw new CertificateFilesError([`${file}: ${problem}`]);
  };
  const [leaf] = certificatesIn(files.certificate, Buffer.from(chain));
  if (leaf === undefined) return refuse(files.certificate, 'holds no certificate');
  let key: KeyObject;
  try {
    key = createPrivateKey(keyText);
  } catch {
    // The reason OpenSSL gives can quote the file; that it is no usable key is enough.
    return refuse(files.key, 'is not an unencrypted private key in PEM');
  }
  if (!leaf.checkPrivateKey(key))
    refuse(files.key, `does not belong to the certificate in ${files.certificate}`);
  const notAfter = leaf.validToDate.getTime() / 1_000;
  if (now > notAfter) refuse(files.certificate, `expired on ${leaf.validToDate.toISOString()}`);
  if (now < leaf.validFromDate.getTime() / 1_000)
    refuse(files.certificate, `is not valid before ${leaf.validFromDate.toISOString()}`);
  return { certificate: chain, key: keyText, notAfter };
}

/** The issuers in one file; several share its name (a CA that is changing its key). */
function loadIssuers(issuer: CertificateFileNames['issuers'][number], now: Epoch): ApprovedIssuer[] {
  const { file, ...rest } = issuer;
  const certificates = certificatesIn(file, readWhole(file));
  if (certificates.length === 0) throw new CertificateFilesError([`${file}: holds no certificate`]);
  const approved = certificates.map((certificate) => {
    try {
      return approveIssuer({ ...rest, certificate });
    } catch (error) {
      throw new CertificateFilesError([`${file}: ${(error as Error).message}`]);
    }
  });
  // One that has ended may stand beside its successor; a file of nothing else is a mistake.
  if (approved.every(({ facts }) => now > facts.notAfter))
    throw new CertificateFilesError([
      `${file}: expired on ${new Date((approved[0]?.facts.notAfter ?? 0) * 1_000).toISOString()}`,
    ]);
  return approved;
}

function certificatesIn(file: string, bytes: Buffer): X509Certificate[] {
  try {
    const ders =
      bytes[0] === 0x30
        ? [bytes]
        : readPem(bytes)
            .filter(({ label }) => label === 'CERTIFICATE')
            .map(({ decode }) => decode());
    return ders.map((der) => new X509Certificate(der));
  } catch (error) {
    const problem = error instanceof PemError ? error.message : 'holds a certificate that cannot be read';
    throw new CertificateFilesError([`${file}: ${problem}`]);
  }
}

const readText = (file: string): string => readWhole(file).toString('utf8');
