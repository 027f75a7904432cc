import { createHash, type KeyObject, X509Certificate } from 'node:crypto';
import type { NameSource } from '../ports/directory.ts';
import { type CertificateFacts, KEY_USAGE, readCertificate } from './certificate-facts.ts';
import { DerError } from './der.ts';
import { weaknessOf } from './signature.ts';

/** A CA whose certificates are accepted, pinned by its key, with where its names are looked up. */
export interface ApprovedIssuer {
  readonly name: string;
  /** SHA-256 of its public key (SubjectPublicKeyInfo), base64url. */
  readonly keyFingerprint: string;
  readonly certificate: X509Certificate;
  readonly key: KeyObject;
  readonly facts: CertificateFacts;
  readonly directory: string;
  readonly identityFrom: NameSource;
}

export interface IssuerDescription {
  readonly name: string;
  readonly certificate: X509Certificate | string | Buffer;
  readonly directory: string;
  readonly identityFrom: NameSource;
}

export const keyFingerprint = (key: KeyObject): string =>
  createHash('sha256')
    .update(key.export({ type: 'spki', format: 'der' }))
    .digest('base64url');

/** Extensions of an issuer that may be critical and change nothing for a certificate it signs directly. */
const HARMLESS: ReadonlySet<string> = new Set(['2.5.29.32' /* certificatePolicies */]);

/** Throws an `Error` whose message completes "<file> ...": what is wrong with it as an issuer. */
export function approveIssuer({ certificate, ...rest }: IssuerDescription): ApprovedIssuer {
  const parsed = certificate instanceof X509Certificate ? certificate : parseCertificate(certificate);
  const facts = readFacts(parsed);
  const key = parsed.publicKey;
  const weakness = weaknessOf(key);
  if (!facts.isCa) throw new Error('is not a CA certificate (basic constraints)');
  if (facts.keyUsage !== undefined && !facts.keyUsage.has(KEY_USAGE.keyCertSign))
    throw new Error('may not sign certificates (key usage)');
  if (weakness !== undefined) throw new Error(`has ${weakness}`);
  // Nobody holds the names against them here, so such an issuer would be believed more than it was meant to be.
  if (facts.constrainsNames) throw new Error('carries name constraints, which are not applied here');
  const unknown = facts.unknownCritical.filter((oid) => !HARMLESS.has(oid));
  if (unknown.length > 0)
    throw new Error(`carries critical extensions that are not understood: ${unknown.join(', ')}`);
  return { ...rest, certificate: parsed, key, keyFingerprint: keyFingerprint(key), facts };
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
    return readCertificate(certificate.raw);
  } catch (cause) {
    if (cause instanceof DerError) throw new Error(`is not a sound certificate: ${cause.message}`, { cause });
    throw cause;
  }
}
