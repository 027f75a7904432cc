import { hash, type KeyObject, X509Certificate } from 'node:crypto';
import type { NameSource } from '../ports/directory.ts';
import { type CertificateFacts, KEY_USAGE, readCertificateFacts } from './certificate-facts.ts';
import { DerError } from './der.ts';
import { findKeyWeakness } from './signature.ts';

/** A CA whose client certificates are accepted, and the directory in which their names are looked up. */
export interface ApprovedIssuer extends NameRule {
  readonly name: string;
  /** SHA-256 of the SubjectPublicKeyInfo, base64url. */
  readonly keyFingerprint: string;
  readonly certificate: X509Certificate;
  readonly key: KeyObject;
  readonly facts: CertificateFacts;
  readonly directory: string;
}

/** Which name in a certificate is the identity, and which names an issuer may assert. */
export interface NameRule {
  readonly identityFrom: NameSource;
  /** The only trust domain of which the issuer may issue SPIFFE IDs; omitted: none. */
  readonly trustDomain?: string;
  /** The identity is the only DNS name in this domain, lower case. */
  readonly dnsDomain?: string;
}

export type IssuerSettings = Pick<ApprovedIssuer, 'name' | 'directory' | keyof NameRule>;

const computeKeyFingerprint = (key: KeyObject): string =>
  hash('sha256', key.export({ type: 'spki', format: 'der' }), 'base64url');

/** May be critical: without effect on certificates that the issuer signs directly. */
const IGNORABLE_EXTENSIONS: ReadonlySet<string> = new Set(['2.5.29.32' /* certificatePolicies */]);

/** Throws an `Error` whose message completes "<file> ...". */
export function approveIssuer({
  certificate,
  ...settings
}: IssuerSettings & { readonly certificate: X509Certificate | string | Buffer }): ApprovedIssuer {
  const parsed = certificate instanceof X509Certificate ? certificate : parseCertificate(certificate);
  const facts = readFacts(parsed);
  const key = parsed.publicKey;
  const weakness = findKeyWeakness(key);
  if (!facts.isCa) throw new Error('is not a CA certificate (basic constraints)');
  if (facts.keyUsage !== undefined && !facts.keyUsage.has(KEY_USAGE.keyCertSign))
    throw new Error('may not sign certificates (key usage)');
  if (weakness !== undefined) throw new Error(`has ${weakness}`);
  // Not implemented: without them, the issuer would be trusted for more names than intended.
  if (facts.hasNameConstraints) throw new Error('has name constraints, which are not supported');
  const unknown = facts.unknownCritical.filter((oid) => !IGNORABLE_EXTENSIONS.has(oid));
  if (unknown.length > 0) throw new Error(`has critical extensions that are not supported: ${unknown.join(', ')}`);
  return { ...settings, certificate: parsed, key, keyFingerprint: computeKeyFingerprint(key), facts };
}

function parseCertificate(source: string | Buffer): X509Certificate {
  try {
    return new X509Certificate(source);
  } catch (cause) {
    throw new Error('is not a certificate', { cause });
  }
}

function readFacts(certificate: X509Certificate): CertificateFacts {
  try {
    return readCertificateFacts(certificate.raw);
  } catch (cause) {
    if (cause instanceof DerError) throw new Error(`is not a valid certificate: ${cause.message}`, { cause });
    throw cause;
  }
}
