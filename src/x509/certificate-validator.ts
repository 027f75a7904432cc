import { hash, X509Certificate } from 'node:crypto';
import { type Epoch, normalizeSerial } from '../domain/grant.ts';
import { type Outcome, ok, refused } from '../domain/refusal.ts';
import { createBoundedCache } from '../lib/bounded-cache.ts';
import type { NameSource } from '../ports/directory.ts';
import { Fault } from '../ports/fault.ts';
import type { ApprovedIssuer } from './approved-issuer.ts';
import {
  ANY_EXTENDED_KEY_USAGE,
  type CertificateFacts,
  CLIENT_AUTH,
  KEY_USAGE,
  MAX_CERTIFICATE_BYTES,
  readCertificateFacts,
} from './certificate-facts.ts';
import { getCertificateName, hasDifferingNames } from './certificate-name.ts';
import type { CrlSet } from './crl-set.ts';
import type { OcspResponder, OcspStatus } from './ocsp-responder.ts';
import { findKeyWeakness, getSignatureScheme, verifySignature } from './signature.ts';
import { isValidAt } from './validity.ts';

/** A certificate that passed every check, and the name it is mapped to. */
export interface ValidatedCertificate {
  /** SHA-256 of the certificate, base64url (RFC 8705, `x5t#S256`). */
  readonly fingerprint: string;
  /** Hexadecimal, without leading zeros. */
  readonly serial: string;
  /** The bytes of the serial number as they are encoded, hexadecimal. */
  readonly encodedSerial: string;
  /** RFC 4514. */
  readonly subject: string;
  /** Fingerprint of the issuer's key, and the issuer's name in the configuration. */
  readonly issuerKey: string;
  readonly issuer: string;
  readonly source: NameSource;
  readonly name: string;
  readonly directory: string;
  /** The certificate has names in other sources too, which are ignored: recorded in the audit log. */
  readonly hasOtherNames: boolean;
  /** The result is valid through this second, unless issuers or CRLs change. */
  readonly validUntil: Epoch;
}

/** `issuer`: the name of the issuer in the certificate. */
type CertificateDescription = Pick<ValidatedCertificate, 'fingerprint' | 'serial' | 'subject' | 'issuer'>;

export interface ValidatorOptions {
  readonly issuers: readonly ApprovedIssuer[];
  readonly crls: CrlSet;
  /** Refuse certificates of issuers without a revocation list and without a responder that must confirm them. */
  readonly requireCrl: boolean;
  /** Refuse certificates without the clientAuth extended key usage. */
  readonly requireClientAuth: boolean;
  readonly asciiNames: boolean;
  /** OCSP responders, by the fingerprint of the issuer's key. */
  readonly ocsp?: ReadonlyMap<string, OcspResponder>;
  /** Number of certificates whose facts and signatures are cached. */
  readonly cacheSize?: number;
}

function applyStatus(
  certificate: ValidatedCertificate,
  { status, checkAgainAt }: OcspStatus,
): Outcome<ValidatedCertificate> {
  switch (status) {
    case 'good':
      return ok({ ...certificate, validUntil: Math.min(certificate.validUntil, checkAgainAt) });
    case 'revoked':
      return refused({ reason: 'certificate_revoked' });
    case 'unknown':
      return refused({ reason: 'certificate_status_unknown' });
  }
}

/** Properties that do not change while the issuers stay the same. */
interface VerifiedCertificate {
  readonly facts: CertificateFacts;
  readonly subject: string;
  readonly issuers: readonly ApprovedIssuer[];
}

/**
 * Validates client certificates on every request, independently of OpenSSL: it only proves in the handshake that the client
 * holds the key, and its result may be out of date. Signatures and facts are cached; validity period and revocation are
 * checked every time.
 */
export function createCertificateValidator(options: ValidatorOptions) {
  const cache = createBoundedCache<string, Outcome<VerifiedCertificate>>(options.cacheSize ?? 5_000);
  const descriptions = createBoundedCache<string, CertificateDescription | 'unreadable'>(MAX_DESCRIPTIONS);
  /** As `validate` without OCSP, for decisions that must not cause network traffic. */
  const validateLocally = (der: Uint8Array, now: Epoch): Outcome<ValidatedCertificate> => {
    const fingerprint = hash('sha256', der, 'base64url');
    let verified = cache.get(fingerprint);
    if (verified === undefined) {
      verified = verifyCertificate(Buffer.from(der), options);
      cache.set(fingerprint, verified);
    }
    return verified.ok ? validateAt(verified.value, fingerprint, now, options) : verified;
  };
  return {
    /** What any certificate says about itself, for audit events; undefined if it cannot be read. */
    describe(der: Uint8Array): CertificateDescription | undefined {
      const fingerprint = hash('sha256', der, 'base64url');
      let description = descriptions.get(fingerprint);
      if (description === undefined) {
        description = describeCertificate(der, fingerprint) ?? 'unreadable';
        descriptions.set(fingerprint, description);
      }
      return description === 'unreadable' ? undefined : description;
    },
    /**
     * Synchronous unless its issuer has an OCSP responder whose status of this certificate is not cached. Throws or rejects
     * with a `Fault` while it is not known whether the certificate is revoked.
     */
    validate(der: Uint8Array, now: Epoch): Outcome<ValidatedCertificate> | Promise<Outcome<ValidatedCertificate>> {
      const local = validateLocally(der, now);
      const responder = local.ok ? options.ocsp?.get(local.value.issuerKey) : undefined;
      if (!local.ok || responder === undefined) return local;
      const { issuerKey, encodedSerial } = local.value;
      // The certificate of the responder may be on the list of the issuer.
      const status = responder.check(
        encodedSerial,
        now,
        (responderSerial) => options.crls.getStatus(issuerKey, responderSerial, now) === 'revoked',
      );
      return status instanceof Promise
        ? status.then((known) => applyStatus(local.value, known))
        : applyStatus(local.value, status);
    },
    /**
     * Is a certificate that was accepted before still accepted while `validate` waits for an OCSP responder? Throws like
     * `validate`.
     */
    isAcceptedMeanwhile(der: Uint8Array, now: Epoch): boolean {
      const local = validateLocally(der, now);
      if (!local.ok) return false;
      const { issuerKey, encodedSerial } = local.value;
      return options.ocsp?.get(issuerKey)?.isAcceptedMeanwhile(encodedSerial) === true;
    },
    validateLocally,
    /** Changes when results of `validate` may be outdated before their `validUntil`. */
    get revision(): number {
      return options.crls.revision;
    },
  };
}

export type CertificateValidator = ReturnType<typeof createCertificateValidator>;

function verifyCertificate(
  der: Buffer,
  { issuers, requireClientAuth }: ValidatorOptions,
): Outcome<VerifiedCertificate> {
  try {
    const facts = readCertificateFacts(der);
    const certificate = new X509Certificate(der);
    const approved = findSigners(facts, certificate, issuers);
    if (approved.length === 0) return refused({ reason: 'certificate_issuer_not_approved' });
    const problem = findProblem(facts, certificate, requireClientAuth);
    return problem === undefined
      ? ok({ facts, subject: formatName(certificate.subject), issuers: approved })
      : refused({ reason: 'certificate_unusable', detail: problem });
  } catch {
    // Whatever the parsers throw for hostile input is a refusal.
    return refused({ reason: 'certificate_unusable', detail: 'it cannot be read' });
  }
}

const MAX_DESCRIPTIONS = 1_000;

function describeCertificate(der: Uint8Array, fingerprint: string): CertificateDescription | undefined {
  if (der.length > MAX_CERTIFICATE_BYTES) return undefined;
  try {
    const certificate = new X509Certificate(der);
    return {
      fingerprint,
      serial: normalizeSerial(certificate.serialNumber),
      subject: formatName(certificate.subject),
      issuer: formatName(certificate.issuer),
    };
  } catch {
    return undefined;
  }
}

const MAX_NAME_LENGTH = 1_024;

/** RFC 4514 §2.1: the last attribute first. OpenSSL has escaped the values. A certificate may have no subject. */
const formatName = (name: string | undefined): string =>
  (name ?? '').split('\n').toReversed().join(',').slice(0, MAX_NAME_LENGTH);

/** Identified by key: the issuer name and key identifier only select the keys to try. */
function findSigners(
  { signed }: CertificateFacts,
  certificate: X509Certificate,
  issuers: readonly ApprovedIssuer[],
): ApprovedIssuer[] {
  const named = issuers.filter((issuer) => certificate.checkIssued(issuer.certificate));
  const scheme = getSignatureScheme(signed);
  // `findProblem` reports the algorithm.
  if (scheme === undefined) return named;
  return named.filter(({ key }) => verifySignature(signed, scheme, key));
}

function findProblem(
  facts: CertificateFacts,
  certificate: X509Certificate,
  requireClientAuth: boolean,
): string | undefined {
  const { keyUsage, extendedKeyUsage, unknownCritical } = facts;
  if (getSignatureScheme(facts.signed) === undefined) return 'it is signed with an algorithm that is not accepted';
  if (facts.isCa) return 'it is the certificate of a certificate authority';
  const weakness = findKeyWeakness(certificate.publicKey);
  if (weakness !== undefined) return `it has ${weakness}`;
  if (unknownCritical.length > 0) return `it has a critical extension that is not supported (${unknownCritical[0]})`;
  if (keyUsage !== undefined && !keyUsage.has(KEY_USAGE.digitalSignature))
    return 'its key usage does not allow digital signatures';
  if (extendedKeyUsage === undefined)
    return requireClientAuth ? 'it has no extended key usage, and clientAuth is needed' : undefined;
  return extendedKeyUsage.has(CLIENT_AUTH) ? undefined : 'its extended key usage does not allow clientAuth';
}

function validateAt(
  { facts, subject, issuers }: VerifiedCertificate,
  fingerprint: string,
  now: Epoch,
  { crls, requireCrl, asciiNames, ocsp }: ValidatorOptions,
): Outcome<ValidatedCertificate> {
  if (!isValidAt(facts, now)) return refused({ reason: 'certificate_outside_validity' });
  const issuer = issuers.find((one) => isValidAt(one.facts, now) && mayIssueClientCertificates(one));
  if (issuer === undefined) return refused({ reason: 'certificate_issuer_not_approved' });

  switch (crls.getStatus(issuer.keyFingerprint, facts.serial, now)) {
    case 'revoked':
      return refused({ reason: 'certificate_revoked' });
    case 'unknown':
      return refused({ reason: 'certificate_status_unknown' });
    case 'unavailable':
      throw new Fault(
        'certificate_status_unavailable',
        `no current revocation list for the key of ${issuer.name} has been fetched from ${crls.listUrls(issuer.keyFingerprint).join(', ')}`,
        { retryAfter: 5 },
      );
    case 'none':
      if (requireCrl && ocsp?.get(issuer.keyFingerprint)?.softFail !== false)
        return refused({ reason: 'certificate_status_unknown' });
      break;
    case 'good':
      break;
  }

  const name = getCertificateName(facts, issuer, asciiNames);
  if (!name.ok) return name;
  return ok({
    fingerprint,
    serial: normalizeSerial(facts.serial),
    encodedSerial: facts.serial,
    subject,
    issuerKey: issuer.keyFingerprint,
    issuer: issuer.name,
    source: issuer.identityFrom,
    name: name.value,
    directory: issuer.directory,
    hasOtherNames: hasDifferingNames(facts, issuer.identityFrom, name.value),
    validUntil: Math.min(facts.notAfter, issuer.facts.notAfter, crls.getStatusExpiry(issuer.keyFingerprint, now)),
  });
}

const mayIssueClientCertificates = ({ facts: { extendedKeyUsage } }: ApprovedIssuer): boolean =>
  extendedKeyUsage === undefined || extendedKeyUsage.has(CLIENT_AUTH) || extendedKeyUsage.has(ANY_EXTENDED_KEY_USAGE);
