import { createHash, X509Certificate } from 'node:crypto';
import type { Epoch } from '../domain/epoch.ts';
import { granted, type Outcome, refused } from '../domain/outcome.ts';
import { boundedCache } from '../http/bounded-cache.ts';
import type { CertificateJudge, JudgedCertificate } from '../ports/certificate-judge.ts';
import type { ApprovedIssuer } from './approved-issuer.ts';
import {
  ANY_USAGE,
  type CertificateFacts,
  CLIENT_AUTH,
  KEY_USAGE,
  readCertificate,
} from './certificate-facts.ts';
import { nameOf, namesDiffer } from './certificate-name.ts';
import type { RevocationLists } from './revocation-lists.ts';
import { isSignedBy, schemeOf, weaknessOf } from './signature.ts';

export interface JudgeOptions {
  readonly issuers: readonly ApprovedIssuer[];
  readonly crls: RevocationLists;
  /** Refuse certificates of issuers without a revocation list. */
  readonly requireCrl: boolean;
  /** Refuse certificates without the clientAuth extended key usage. */
  readonly requireClientAuth: boolean;
  readonly asciiNames: boolean;
  /** How many certificates' facts and signatures are remembered. */
  readonly remembered?: number;
}

/** What stays true of a certificate for as long as the issuers stay the same. */
interface Standing {
  readonly facts: CertificateFacts;
  readonly issuers: readonly ApprovedIssuer[];
}

/**
 * Judges client certificates by our own rules: OpenSSL proved that the caller holds the key, and nothing it
 * decided beyond that is used. Signatures and facts are remembered; time and revocation are asked every time.
 */
export function createCertificateJudge(options: JudgeOptions): CertificateJudge {
  const standings = boundedCache<string, Outcome<Standing>>(options.remembered ?? 5_000);
  return {
    judge(der, now) {
      const fingerprint = createHash('sha256').update(der).digest('base64url');
      let standing = standings.get(fingerprint);
      if (standing === undefined) {
        standing = standingOf(Buffer.from(der), options);
        standings.set(fingerprint, standing);
      }
      return standing.ok ? judgeNow(standing.value, fingerprint, now, options) : standing;
    },
  };
}

function standingOf(der: Buffer, { issuers, requireClientAuth }: JudgeOptions): Outcome<Standing> {
  try {
    const facts = readCertificate(der);
    const certificate = new X509Certificate(der);
    const approved = issuersOf(facts, certificate, issuers);
    if (approved.length === 0) return refused({ reason: 'certificate_issuer_not_approved' });
    const flaw = flawOf(facts, certificate, requireClientAuth);
    return flaw === undefined
      ? granted({ facts, issuers: approved })
      : refused({ reason: 'certificate_unusable', detail: flaw });
  } catch {
    // Whatever two parsers throw at hostile bytes: it is not a certificate, and never more than a refusal.
    return refused({ reason: 'certificate_unusable', detail: 'it cannot be read' });
  }
}

/** By key, never by name: the name (and key identifier) only tell which keys to try. */
function issuersOf(
  { signed }: CertificateFacts,
  certificate: X509Certificate,
  issuers: readonly ApprovedIssuer[],
): ApprovedIssuer[] {
  const named = issuers.filter((issuer) => certificate.checkIssued(issuer.certificate));
  const scheme = schemeOf(signed);
  // Told apart from "not approved" in `flawOf`; who really signed it does not matter then.
  if (scheme === undefined) return named;
  return named.filter(({ key }) => isSignedBy(signed, scheme, key));
}

function flawOf(
  facts: CertificateFacts,
  certificate: X509Certificate,
  requireClientAuth: boolean,
): string | undefined {
  const { keyUsage, extendedKeyUsage, unknownCritical } = facts;
  if (schemeOf(facts.signed) === undefined) return 'it is signed with an algorithm that is not accepted';
  if (facts.isCa) return 'it is the certificate of a certificate authority';
  const weakness = weaknessOf(certificate.publicKey);
  if (weakness !== undefined) return `it has ${weakness}`;
  if (unknownCritical.length > 0)
    return `it carries a critical extension that is not understood (${unknownCritical[0]})`;
  if (keyUsage !== undefined && !keyUsage.has(KEY_USAGE.digitalSignature))
    return 'its key usage does not allow digital signatures';
  if (extendedKeyUsage === undefined)
    return requireClientAuth ? 'it has no extended key usage, and clientAuth is needed' : undefined;
  return extendedKeyUsage.has(CLIENT_AUTH) ? undefined : 'its extended key usage does not allow clientAuth';
}

function judgeNow(
  { facts, issuers }: Standing,
  fingerprint: string,
  now: Epoch,
  { crls, requireCrl, asciiNames }: JudgeOptions,
): Outcome<JudgedCertificate> {
  const current = ({ notBefore, notAfter }: CertificateFacts): boolean => now >= notBefore && now <= notAfter;
  if (!current(facts)) return refused({ reason: 'certificate_outside_validity' });
  const issuer = issuers.find((one) => current(one.facts) && allowsClients(one));
  if (issuer === undefined) return refused({ reason: 'certificate_issuer_not_approved' });

  switch (crls.statusOf(issuer.keyFingerprint, facts.serial, now)) {
    case 'revoked':
      return refused({ reason: 'certificate_revoked' });
    case 'unknown':
      return refused({ reason: 'certificate_status_unknown' });
    case 'none':
      if (requireCrl) return refused({ reason: 'certificate_status_unknown' });
      break;
    case 'good':
      break;
  }

  const name = nameOf(facts, issuer.identityFrom, asciiNames);
  if (!name.ok) return name;
  return granted({
    fingerprint,
    issuerKey: issuer.keyFingerprint,
    issuer: issuer.name,
    source: issuer.identityFrom,
    name: name.value,
    directory: issuer.directory,
    namesDiffer: namesDiffer(facts, issuer.identityFrom, name.value),
    until: Math.min(facts.notAfter, issuer.facts.notAfter, crls.statusUntil(issuer.keyFingerprint, now)),
  });
}

/** An issuer that is itself limited to other purposes cannot vouch for clients. */
const allowsClients = ({ facts: { extendedKeyUsage } }: ApprovedIssuer): boolean =>
  extendedKeyUsage === undefined || extendedKeyUsage.has(CLIENT_AUTH) || extendedKeyUsage.has(ANY_USAGE);
