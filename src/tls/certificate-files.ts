import { createPrivateKey, type KeyObject, X509Certificate } from 'node:crypto';
import { readFileSync, statSync } from 'node:fs';
import type { Epoch } from '../domain/epoch.ts';
import type { NameSource } from '../ports/directory.ts';
import { type ApprovedIssuer, approveIssuer } from './approved-issuer.ts';
import { type RevocationLists, readRevocationFile, revocationLists } from './revocation-lists.ts';

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

const MAX_BYTES = 64 * 1_048_576;
const SOON = 30 * 86_400;

/** Reads everything and reports all problems at once, as one `CertificateFilesError`. */
export function loadCertificateFiles(names: CertificateFileNames, now: Epoch): CertificateFiles {
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
  const lists = names.crls.flatMap(
    (file) => attempt(file, () => readRevocationFile(file, readWhole(file), issuers)) ?? [],
  );
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
  ];
  return { ...(server !== undefined && { server }), issuers, crls, warnings };
}

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
  const blocks =
    bytes[0] === 0x30
      ? [bytes]
      : [
          ...bytes.toString('latin1').matchAll(/-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----/g),
        ].map(([block]) => block);
  try {
    return blocks.map((block) => new X509Certificate(block));
  } catch {
    throw new CertificateFilesError([`${file}: holds a certificate that cannot be read`]);
  }
}

function readWhole(file: string): Buffer {
  try {
    if (statSync(file).size > MAX_BYTES) throw new CertificateFilesError([`${file}: is larger than 64 MiB`]);
    return readFileSync(file);
  } catch (error) {
    if (error instanceof CertificateFilesError) throw error;
    const { code } = error as NodeJS.ErrnoException;
    const words = code === 'ENOENT' ? 'does not exist' : `cannot be read (${code})`;
    throw new CertificateFilesError([`${file}: ${words}`]);
  }
}

const readText = (file: string): string => readWhole(file).toString('utf8');
