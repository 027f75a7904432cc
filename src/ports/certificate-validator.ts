import type { Epoch } from '../domain/epoch.ts';
import type { Outcome } from '../domain/outcome.ts';
import type { NameSource } from './directory.ts';

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
export type CertificateDescription = Pick<ValidatedCertificate, 'fingerprint' | 'serial' | 'subject' | 'issuer'>;

/**
 * Validates a client certificate on every request: TLS proves only possession of the key, and the result of the handshake
 * may be out of date.
 */
export interface CertificateValidator {
  /** What any certificate says about itself, for audit events; undefined if it cannot be read. */
  describe(der: Uint8Array): CertificateDescription | undefined;
  /**
   * Synchronous unless its issuer has an OCSP responder whose status of this certificate is not cached. Throws or rejects
   * with a `Fault` while it is not known whether the certificate is revoked.
   */
  validate(der: Uint8Array, now: Epoch): Outcome<ValidatedCertificate> | Promise<Outcome<ValidatedCertificate>>;
  /**
   * Is a certificate that was accepted before still accepted while `validate` waits for an OCSP responder? Throws like
   * `validate`.
   */
  isAcceptedMeanwhile(der: Uint8Array, now: Epoch): boolean;
  /** As `validate` without OCSP, for decisions that must not cause network traffic. */
  validateLocally(der: Uint8Array, now: Epoch): Outcome<ValidatedCertificate>;
  /** Changes when results of `validate` may be outdated before their `validUntil`. */
  readonly revision: number;
}
