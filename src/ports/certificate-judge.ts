import type { Epoch } from '../domain/epoch.ts';
import type { Outcome } from '../domain/outcome.ts';
import type { NameSource } from './directory.ts';

/** A certificate that passed every rule, and the one name it gives its holder. */
export interface JudgedCertificate {
  /** SHA-256 of the certificate, base64url (RFC 8705 `x5t#S256`). */
  readonly fingerprint: string;
  /** Fingerprint of the issuer's key, and the issuer's name in the configuration. */
  readonly issuerKey: string;
  readonly issuer: string;
  readonly source: NameSource;
  readonly name: string;
  readonly directory: string;
  /** The certificate also carries other names (in sources that are not asked): worth a line in the audit log. */
  readonly namesDiffer: boolean;
  /** The verdict holds through this second, unless issuers or revocation lists change. */
  readonly until: Epoch;
}

/**
 * Judges a client certificate, at every call: TLS proves possession of the key and nothing more, and what was
 * true at the handshake may not be true now.
 */
export interface CertificateJudge {
  judge(der: Uint8Array, now: Epoch): Outcome<JudgedCertificate>;
}
