import { createPrivateKey, type KeyObject, X509Certificate } from 'node:crypto';
import type { Epoch } from '../domain/grant.ts';
import { ProblemsError } from '../lib/problems-error.ts';
import { type ApprovedIssuer, approveIssuer, type IssuerSettings, type NameRule } from './approved-issuer.ts';
import { type CrlFiles, createCrlFiles } from './crl-files.ts';
import { readBytes } from './crl-reader.ts';
import { type Crl, type CrlSet, type CrlSource, createCrlSet } from './crl-set.ts';
import { TAG } from './der.ts';
import { parsePem } from './pem.ts';
import { describeValidity, isValidAt, mergeValidity, readValidity } from './validity.ts';

/** Each problem names its file. */
export class CertificateFilesError extends ProblemsError {}

export interface CertificateFiles {
  readonly server?: ReturnType<typeof loadServerCertificate>;
  readonly issuers: readonly ApprovedIssuer[];
  readonly crls: CrlSet;
  /** Certificates that have expired or are not valid yet. They prevent neither a start nor a reload, which may bring a revocation. */
  readonly expired: readonly string[];
  readonly warnings: readonly string[];
}

export interface CertificateFilePaths {
  readonly server?: { readonly certificate: string; readonly key: string };
  readonly issuers: readonly (IssuerSettings & { readonly file: string })[];
  readonly crls: readonly string[];
}

interface CertificateFilesContext {
  /** Caches parsed revocation lists across reloads. */
  readonly crlFiles?: CrlFiles;
  /** The files in use. Their revocation lists may only be replaced by newer ones. */
  readonly current?: CertificateFiles | undefined;
  /** Opens the revocation lists that are fetched, once the issuers are known. */
  readonly openCrlSources?: (issuers: readonly ApprovedIssuer[]) => readonly CrlSource[];
}

/** Reports all problems in one `CertificateFilesError`. */
export async function loadCertificateFiles(
  paths: CertificateFilePaths,
  now: Epoch,
  { crlFiles = createCrlFiles(), current, openCrlSources }: CertificateFilesContext = {},
): Promise<CertificateFiles> {
  const problems: string[] = [];
  const attempt = <T>(file: string, work: () => T): T | undefined => {
    try {
      return work();
    } catch (error) {
      if (error instanceof CertificateFilesError) problems.push(...error.problems);
      else problems.push(`${file} ${(error as Error).message}`);
      return undefined;
    }
  };

  const { server: files } = paths;
  // Both are read, so that both are reported if missing.
  const chain = files && attempt(files.certificate, () => readBytes(files.certificate).toString());
  const key = files && attempt(files.key, () => readBytes(files.key).toString());
  const server =
    files === undefined || chain === undefined || key === undefined
      ? undefined
      : attempt(files.certificate, () => loadServerCertificate(files, chain, key));
  const loadedIssuers = paths.issuers.map((issuer) => ({
    file: issuer.file,
    certificates: attempt(issuer.file, () => loadIssuers(issuer)) ?? [],
  }));
  const issuers = loadedIssuers.flatMap(({ certificates }) => certificates);
  problems.push(...findConflictingIssuers(issuers));
  const { lists, problems: unusable } = await crlFiles.load(paths.crls, issuers);
  problems.push(...unusable);
  if (problems.length > 0) throw new CertificateFilesError(problems);

  const crls = createCrlSet(lists, openCrlSources?.(issuers));
  // Certificates of expired issuers are not accepted anyway.
  const unexpired = issuers.filter(({ facts }) => facts.notAfter >= now);
  const lostCrls = current === undefined ? [] : findLostCrls(current.crls.lists, crls.lists, unexpired);
  // Removing a file from the configuration is intentional: that is only a warning.
  const lostFiles = lostCrls.filter(({ file }) => paths.crls.includes(file));
  if (lostFiles.length > 0) throw new CertificateFilesError(lostFiles.map(describeLostCrl));
  // A valid certificate is not replaced by one that clients reject.
  const kept =
    server && current?.server && !isValidAt(server, now) && isValidAt(current.server, now) ? current.server : undefined;
  const validity = mergeValidity([
    ...(files && server
      ? [
          describeValidity([server], now, {
            subject: `listen.tls.certificate: ${files.certificate}`,
            ...(kept === undefined ? REJECTED_BY_CLIENTS : PREVIOUS_IN_USE),
          }),
        ]
      : []),
    ...loadedIssuers.map(({ file, certificates }) =>
      describeValidity(
        certificates.map(({ facts }) => facts),
        now,
        {
          subject: file,
          expired: 'client certificates of this CA are refused: add its new certificate, or remove the issuer',
          early: 'client certificates of this CA are refused until then: check the clock',
        },
      ),
    ),
  ]);
  const warnings = [
    ...validity.warnings,
    ...crls.getWarnings(now),
    ...lostCrls.map(({ issuer, replacement }) =>
      replacement === undefined
        ? `certificates.crls: no revocation list of ${issuer} is loaded anymore; revoked certificates of this issuer are accepted unless certificates.requireCrl is set`
        : `${replacement.file}: the revocation list of ${issuer} is older than the one before it`,
    ),
  ];
  const used = kept ?? server;
  return { ...(used !== undefined && { server: used }), issuers, crls, expired: validity.expired, warnings };
}

const REJECTED_BY_CLIENTS = {
  expired: 'clients reject connections: replace it; the new one is used without a restart',
  early: 'clients reject connections until then: check the clock, or use the previous certificate',
} as const;
const PREVIOUS_IN_USE = {
  expired: 'this process uses the previous certificate until it is restarted: replace the file',
  early: 'this process uses the previous certificate until it is restarted: check the clock, or reload at that time',
} as const;

/** Lists of approved issuers that are missing or replaced by older ones: certificates they revoke would be accepted again. */
function findLostCrls(previous: readonly Crl[], crls: readonly Crl[], issuers: readonly ApprovedIssuer[]) {
  const approved = new Set(issuers.map(({ keyFingerprint }) => keyFingerprint));
  const newestByIssuer = getNewestByIssuer(crls);
  return [...getNewestByIssuer(previous).values()].flatMap(({ issuerKey, issuer, file, thisUpdate }) => {
    const replacement = newestByIssuer.get(issuerKey);
    const isLost = replacement === undefined || replacement.thisUpdate < thisUpdate;
    return approved.has(issuerKey) && isLost ? [{ file, issuer, replacement }] : [];
  });
}

function getNewestByIssuer(crls: readonly Crl[]): ReadonlyMap<string, Crl> {
  const newest = new Map<string, Crl>();
  for (const list of crls) {
    const other = newest.get(list.issuerKey);
    if (other === undefined || other.thisUpdate < list.thisUpdate) newest.set(list.issuerKey, list);
  }
  return newest;
}

const describeLostCrl = ({ file, issuer, replacement }: ReturnType<typeof findLostCrls>[number]): string =>
  replacement === undefined
    ? `${file}: no longer contains the revocation list of ${issuer}; restore it, remove the issuer or the file from the configuration, or restart to run without it`
    : `${replacement.file}: contains a revocation list of ${issuer} that is older than the one in use; restore the newer one, or restart to use the older one`;

/** Issuers are identified by key, so two entries with the same key must have the same settings. */
function findConflictingIssuers(issuers: readonly ApprovedIssuer[]): string[] {
  const byKey = new Map<string, ApprovedIssuer>();
  return issuers.flatMap((issuer) => {
    const other = byKey.get(issuer.keyFingerprint) ?? issuer;
    byKey.set(issuer.keyFingerprint, other);
    return other.directory === issuer.directory && isSameRule(other, issuer)
      ? []
      : [
          `certificates.issuers: "${other.name}" and "${issuer.name}" have the same key, but differ in directory, identityFrom, trustDomain or dnsDomain`,
        ];
  });
}

const isSameRule = (one: NameRule, other: NameRule): boolean =>
  one.identityFrom === other.identityFrom && one.trustDomain === other.trustDomain && one.dnsDomain === other.dnsDomain;

/** Checks that certificate and key match. */
function loadServerCertificate(
  files: { readonly certificate: string; readonly key: string },
  chain: string,
  keyText: string,
) {
  const [leaf] = parseCertificates(Buffer.from(chain));
  let key: KeyObject;
  try {
    key = createPrivateKey(keyText);
  } catch {
    // Without the message of OpenSSL, which may quote the key.
    const holdsCertificate = keyText.includes('-----BEGIN CERTIFICATE-----') && !keyText.includes('PRIVATE KEY');
    const problem = holdsCertificate
      ? 'contains a certificate, but no private key; name the file with the key'
      : 'is not an unencrypted private key in PEM';
    throw new CertificateFilesError([`listen.tls.key: ${files.key} ${problem}`]);
  }
  if (!leaf.checkPrivateKey(key))
    throw new CertificateFilesError([
      `listen.tls.key: ${files.key} is not the private key of the certificate in ${files.certificate}`,
    ]);
  return { certificate: chain, key: keyText, ...readValidity(leaf) };
}

/** A file may contain several issuers (a CA that is replacing its key), which share its name. */
function loadIssuers({ file, ...settings }: CertificateFilePaths['issuers'][number]): ApprovedIssuer[] {
  return parseCertificates(readBytes(file)).map((certificate) => approveIssuer({ ...settings, certificate }));
}

/** At least one certificate. Throws an `Error` whose message completes "<file> ...". */
export function parseCertificates(bytes: Buffer): [X509Certificate, ...X509Certificate[]] {
  const ders =
    bytes[0] === TAG.sequence
      ? [bytes]
      : parsePem(bytes)
          .filter(({ label }) => label === 'CERTIFICATE')
          .map(({ decode }) => decode())
          .toArray();
  if (ders.length === 0) throw new Error('contains no certificate');
  try {
    return ders.map((der) => new X509Certificate(der)) as [X509Certificate, ...X509Certificate[]];
  } catch (cause) {
    throw new Error('contains a certificate that cannot be parsed', { cause });
  }
}
