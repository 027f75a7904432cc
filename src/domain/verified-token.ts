import type { Epoch } from './epoch.ts';
import type { Profile } from './profile.ts';
import type { TokenFault } from './refusal.ts';
import type { Scope } from './scope.ts';

/** An authentic access token. Whether it is still valid is checked at every use. */
export interface VerifiedToken {
  readonly grantId: string;
  readonly generation: number;
  readonly clientId: string;
  readonly identity: string;
  readonly scope: Scope;
  readonly issuedAt: Epoch;
  /** The number of its grant, 0 if omitted. Tokens of other issuers have none. */
  readonly issuedAfter?: number;
  readonly expires: Epoch;
  /** SHA-256 of the certificate that it is bound to (RFC 8705 `cnf`). */
  readonly boundTo?: string;
  /** Thumbprint of the key that it is bound to (RFC 9449 `jkt`). */
  readonly proofKey?: string;
  /** Its key, which may be retired while the token is cached. */
  readonly keyId: string;
  /** Its grant had ended when the token was first looked up. */
  readonly grantEnded?: true;
  /** The configured name of the trusted issuer; omitted for tokens of gatehouse. */
  readonly issuer?: string;
  /** The id under which all tokens of its session are revoked. Only tokens of trusted issuers have it. */
  readonly sessionId?: string;
  /** The `aud` of a trusted issuer's token. In gatehouse's own tokens it is one value, omitted if it is the default. */
  readonly audience?: readonly string[];
  /** The client whose token was exchanged for the grant of this token: `<trusted issuer>/<client>`. */
  readonly exchangedFrom?: string;
  readonly profile?: Profile;
  /** Only rejected tokens have one. */
  readonly rejection?: undefined;
}

/** Returns the issuer in a client id of another issuer, `<issuer>/<client>`. */
export const getIssuerOfClient = (clientId: string): string => clientId.split('/', 1)[0] ?? '';

interface TokenCheckInput {
  readonly now: Epoch;
  readonly revoked: boolean;
  readonly clientKnown: boolean;
  /** Thumbprint of the key of a verified DPoP proof for this request and token. */
  readonly proofKey?: string | undefined;
  /** Called only if the token is bound to a certificate. */
  readonly certificate: () => PresentedCertificate | undefined;
}

export interface PresentedCertificate {
  /** SHA-256, base64url (RFC 8705 `x5t#S256`). */
  readonly fingerprint: string;
  /** Its issuer is approved, it is valid now and it is not revoked. */
  readonly accepted: boolean;
  /** Validated again while a stream is open. */
  readonly der?: Uint8Array;
}

/** Undefined if the token is valid now. There is no tolerance at `expires`. */
export function findTokenFault(token: VerifiedToken, facts: TokenCheckInput): TokenFault | undefined {
  if (facts.now >= token.expires) return 'expired';
  if (token.issuedAt > facts.now + CLOCK_TOLERANCE) return 'not_yet_valid';
  if (facts.revoked || token.grantEnded === true) return 'revoked';
  if (!facts.clientKnown) return 'client_removed';
  if (token.proofKey !== undefined && token.proofKey !== facts.proofKey) return 'proof_missing';
  if (token.boundTo === undefined) return undefined;
  const presented = facts.certificate();
  if (presented?.fingerprint !== token.boundTo) return 'certificate_not_presented';
  return presented.accepted ? undefined : 'certificate_rejected';
}

/** Seconds by which the clock of the issuing process may be ahead. */
export const CLOCK_TOLERANCE = 5;
