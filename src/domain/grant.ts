import type { GrantType, TokenFormat } from './integration.ts';
import type { Refusal, TokenFault } from './refusal.ts';
import type { Scope } from './scope.ts';
import type { AssertedGroups, Profile } from './user.ts';

/** Seconds since 1970. `now` has fractions; stored and sent times are whole numbers. The domain never reads a clock. */
export type Epoch = number;

/**
 * What an integration may do on behalf of an identity, until `refreshUntil`. Contains no secret: its refresh token is its id
 * and generation under a MAC, its access token is signed. Both can be recomputed, so a retry gets the same response.
 */
export interface Grant {
  readonly id: string;
  readonly clientId: string;
  readonly identity: string;
  readonly grantType: GrantType;
  /** Exactly as requested. */
  readonly scope: string;
  readonly issuedAt: Epoch;
  /**
   * The number of the last revocation of a client, an identity or a trusted issuer that was known when the grant was approved, or issued
   * without an approval; none if omitted. Never changes: later revocations of this kind apply to all tokens of the grant.
   */
  readonly issuedAfter?: number;
  /** Never changes. */
  readonly refreshUntil: Epoch;
  /** The number of the valid refresh token. Each rotation adds one. */
  readonly generation: number;
  /** The start of this generation, with milliseconds. */
  readonly rotatedAt: Epoch;
  readonly accessExpires: Epoch;
  /** The keys of this generation's tokens, to recompute them. */
  readonly keys: KeyIds;
  /** The format of this generation's access token, to recompute it; `jwt` if omitted. */
  readonly format?: TokenFormat;
  /** SHA-256 of the certificate that the grant is bound to (RFC 8705). */
  readonly boundTo?: string;
  /** Thumbprint (RFC 7638) of the DPoP key that the grant is bound to (RFC 9449 `jkt`). */
  readonly proofKey?: string;
  /** The `aud` of this generation's access token, to recompute it; the public URL if omitted. */
  readonly audience?: string;
  /** The generation from which on this is the audience: earlier opaque tokens were for another one. */
  readonly audienceSince?: number;
  /** The client whose token was exchanged: `<trusted issuer>/<client>`. */
  readonly exchangedFrom?: string;
  /** Obtained by a client that authenticated: a refresh requires that too. */
  readonly clientAuthenticated?: true;
  /** Its id is derived from a token that can be exchanged once, and that is valid until then: the record must stay. */
  readonly singleUseUntil?: Epoch;
  readonly revokedAt?: Epoch;
  /** As of the latest refresh. */
  readonly profile?: Profile;
  /** As of the sign-in of the user who approved the grant: a refresh cannot ask the provider. */
  readonly assertedGroups?: AssertedGroups;
  /** The certificate that the grant was issued for. */
  readonly certificate?: GrantCertificate;
}

/** Leads an auditor from a certificate to its grants and back. */
export interface GrantCertificate {
  /** SHA-256, base64url (RFC 8705, `x5t#S256`). */
  readonly fingerprint: string;
  /** Hexadecimal, without leading zeros. */
  readonly serial: string;
  /** RFC 4514. */
  readonly subject: string;
  /** The name of the issuer in the configuration. */
  readonly issuer: string;
}

export interface KeyIds {
  readonly signing: string;
  readonly sealing: string;
}

/** As programs print fingerprints, from base64url. */
export const formatFingerprint = (fingerprint: string): string => Buffer.from(fingerprint, 'base64url').toString('hex');

/** Programs print serial numbers with and without colons and leading zeros, in either letter case. */
export const normalizeSerial = (hex: string): string =>
  hex
    .replaceAll(':', '')
    .toLowerCase()
    .replace(/^0+(?=.)/, '');

type GrantState = 'live' | 'expired' | 'revoked';

export function getGrantState(grant: Grant, now: Epoch): GrantState {
  if (grant.revokedAt !== undefined) return 'revoked';
  return now < grant.refreshUntil ? 'live' : 'expired';
}

/** Access tokens never outlive their grant. */
export const computeAccessExpiry = (now: Epoch, lifetime: number, refreshUntil: Epoch): Epoch =>
  Math.min(Math.floor(now) + lifetime, refreshUntil);

export interface RefreshAttempt {
  readonly clientId: string;
  readonly generation: number;
  /** SHA-256 of the client certificate of the connection. */
  readonly certificate?: string;
  readonly clientAuthenticated?: boolean;
  /** Thumbprint of the key of the DPoP proof. */
  readonly proofKey?: string | undefined;
  readonly now: Epoch;
  readonly arrivedAt: Epoch;
  /** Seconds in which a lost response can be requested again; 0: never. */
  readonly retryWindow: number;
  /** Called only if the decision depends on outages. */
  readonly outages: () => readonly Outage[];
  readonly accessLifetime: number;
  readonly keys: KeyIds;
  readonly format?: TokenFormat;
  /** Those of the integration now. */
  readonly audiences?: readonly string[] | undefined;
}

/** A time in which gatehouse could not respond: no process was running, or the store was unreachable. */
export interface Outage {
  readonly began: Epoch;
  readonly ended: Epoch;
}

type RefreshDecision =
  /** Store this grant, then return its tokens. `rolledForward`: the store had lost a later generation. */
  | { readonly kind: 'rotated'; readonly grant: Grant; readonly rolledForward: boolean }
  /** The last response was lost: return the same again, store nothing. */
  | { readonly kind: 'retried'; readonly grant: Grant }
  /** A used token was presented again, so two parties hold this grant. */
  | { readonly kind: 'reused'; readonly grant: Grant }
  | { readonly kind: 'refused'; readonly refusal: Refusal };

/** The longest time from the decision about a rotation, which the record contains, to its response. */
const MAX_ROTATION_SECONDS = 1;

const refuse = (refusal: Refusal): RefreshDecision => ({ kind: 'refused', refusal });

/** Pure: the loser of a race reads the grant again and decides again. */
export function decideRefresh(grant: Grant, attempt: RefreshAttempt): RefreshDecision {
  const { generation, now } = attempt;
  if (grant.clientId !== attempt.clientId) return refuse({ reason: 'client_mismatch', grantId: grant.id });
  if (grant.clientAuthenticated === true && attempt.clientAuthenticated !== true)
    return refuse({ reason: 'client_authentication_required', clientId: grant.clientId });
  if (grant.boundTo !== undefined && grant.boundTo !== attempt.certificate)
    return refuse({ reason: 'certificate_binding_mismatch', grantId: grant.id });
  if (!isProofKeyAllowed(grant, attempt)) return refuse({ reason: 'proof_binding_mismatch', grantId: grant.id });

  switch (getGrantState(grant, now)) {
    case 'revoked':
      return refuse({ reason: 'grant_revoked' });
    case 'expired':
      return refuse({ reason: 'grant_expired', refreshUntil: grant.refreshUntil });
    case 'live':
      break;
  }

  // The token is authentic, so a generation above the record's means that a failover lost an update: continue from the token.
  if (generation >= grant.generation) {
    const { audience, ...rest } = grant;
    const nextAudience = chooseNextAudience(audience, attempt.audiences);
    return {
      kind: 'rotated',
      rolledForward: generation > grant.generation,
      grant: {
        ...rest,
        ...(nextAudience !== undefined && { audience: nextAudience }),
        ...(nextAudience !== audience && { audienceSince: generation + 1 }),
        ...(attempt.proofKey !== undefined && { proofKey: attempt.proofKey }),
        generation: generation + 1,
        rotatedAt: now,
        accessExpires: computeAccessExpiry(now, attempt.accessLifetime, grant.refreshUntil),
        keys: attempt.keys,
        format: attempt.format ?? 'jwt',
      },
    };
  }

  if (generation === grant.generation - 1) {
    if (isInRetryWindow(grant, attempt))
      // The same tokens are returned again, so the key must be the same too.
      return grant.proofKey === attempt.proofKey
        ? { kind: 'retried', grant }
        : refuse({ reason: 'proof_binding_mismatch', grantId: grant.id });
    // Received together with the request that used the token: a lost race, not a replay.
    if (attempt.arrivedAt <= grant.rotatedAt + MAX_ROTATION_SECONDS)
      return refuse({ reason: 'refresh_token_used', grantId: grant.id });
  }
  return { kind: 'reused', grant };
}

/**
 * RFC 9449 §5: the refresh token of a public client is bound to the key. A client that authenticates may use another key, or
 * begin to use one. A public client may not: an attacker with its refresh token could exclude it with another key.
 */
const isProofKeyAllowed = (grant: Grant, { proofKey, clientAuthenticated }: RefreshAttempt): boolean =>
  grant.proofKey === proofKey || (clientAuthenticated === true && proofKey !== undefined);

/** A grant keeps its audience for as long as its integration has it. */
const chooseNextAudience = (current: string | undefined, allowed: readonly string[] | undefined): string | undefined =>
  allowed === undefined || (current !== undefined && allowed.includes(current)) ? allowed && current : allowed[0];

/** The window counts only time in which gatehouse served: an outage pauses an open window, and never reopens a closed one. */
function isInRetryWindow(grant: Grant, { now, retryWindow, outages }: RefreshAttempt): boolean {
  // The clock was set back since: the window would stay open until it catches up.
  if (retryWindow <= 0 || grant.rotatedAt > now + retryWindow) return false;
  if (now < grant.rotatedAt + retryWindow) return true;
  return computeServedSeconds(grant.rotatedAt, now, outages()) < retryWindow;
}

/** Seconds from `from` to `to` without outages, which may overlap. */
export function computeServedSeconds(from: Epoch, to: Epoch, outages: readonly Outage[]): number {
  let served = to - from;
  let countedUntil = from;
  for (const { began, ended } of outages.toSorted((one, other) => one.began - other.began)) {
    const end = Math.min(ended, to);
    const paused = end - Math.max(began, countedUntil);
    if (paused <= 0) continue;
    served -= paused;
    countedUntil = end;
  }
  return served;
}

export function markRevoked(grant: Grant, now: Epoch): Grant {
  return grant.revokedAt === undefined ? { ...grant, revokedAt: Math.floor(now) } : grant;
}

/** Records are kept for a day after the grant expires, so that late clients get "expired" and not "unknown". */
export const getGrantRecordExpiry = (grant: Grant, atLeast: Epoch = 0): Epoch =>
  Math.max(grant.refreshUntil, grant.singleUseUntil ?? 0, atLeast) + 86_400;

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
