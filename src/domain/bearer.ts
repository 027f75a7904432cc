import type { Epoch } from './epoch.ts';
import type { TokenFault } from './refusal.ts';
import type { Scope } from './scope.ts';

/** What an authentic access token says. Whether it still counts is asked on every use. */
export interface Bearer {
  readonly grantId: string;
  readonly generation: number;
  readonly clientId: string;
  readonly identity: string;
  readonly scope: Scope;
  readonly issuedAt: Epoch;
  readonly expires: Epoch;
  /** SHA-256 of the certificate it is bound to (RFC 8705 `cnf`), when it is. */
  readonly boundTo?: string;
  /** The key it was made with, which may be retired while the token is remembered. */
  readonly keyId: string;
  /** Its grant was already ended when the token was first looked up. */
  readonly grantEnded?: true;
}

export interface BearerFacts {
  readonly now: Epoch;
  readonly revoked: boolean;
  readonly clientKnown: boolean;
  /** The client certificate of this request; read only when the token is bound to one. */
  readonly certificate: () => ShownCertificate | undefined;
}

/** The client certificate that came with a request. */
export interface ShownCertificate {
  /** SHA-256, base64url (RFC 8705 `x5t#S256`). */
  readonly fingerprint: string;
  /** Its issuer is approved, it is valid now and it is not revoked. */
  readonly accepted: boolean;
  /** The certificate itself: it is judged again while a stream runs on the token. */
  readonly der?: Uint8Array;
}

/** Why an authentic token does not count now; undefined when it does. A token works before `expires`, without tolerance. */
export function bearerFault(bearer: Bearer, facts: BearerFacts): TokenFault | undefined {
  if (facts.now >= bearer.expires) return 'expired';
  if (bearer.issuedAt > facts.now + CLOCK_TOLERANCE) return 'not_yet_valid';
  if (facts.revoked || bearer.grantEnded === true) return 'revoked';
  if (!facts.clientKnown) return 'client_removed';
  if (bearer.boundTo === undefined) return undefined;
  const shown = facts.certificate();
  if (shown?.fingerprint !== bearer.boundTo) return 'certificate_not_presented';
  return shown.accepted ? undefined : 'certificate_refused';
}

/** Another machine's clock may be a little ahead of ours. */
export const CLOCK_TOLERANCE = 5;
