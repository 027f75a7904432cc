import { type Epoch, wholeSeconds } from './epoch.ts';
import type { GrantType, TokenFormat } from './integration.ts';
import type { Refusal } from './refusal.ts';

/**
 * What an integration was given on behalf of an identity, until `refreshUntil`.
 *
 * A grant holds no secret. Its refresh token is its id and generation under a MAC, its access token is signed;
 * both can be made again from this record alone, so a lost answer is answered again with the same strings.
 */
export interface Grant {
  readonly id: string;
  readonly clientId: string;
  readonly identity: string;
  readonly grantType: GrantType;
  /** As it was asked for, to the letter. */
  readonly scope: string;
  readonly issuedAt: Epoch;
  /** Fixed when the grant is made; never moves. */
  readonly refreshUntil: Epoch;
  /** Which refresh token works now. Each rotation adds one; earlier numbers are spent. */
  readonly generation: number;
  /** When this generation began, to the millisecond. */
  readonly rotatedAt: Epoch;
  /** When this generation's access token ends. */
  readonly accessExpires: Epoch;
  /** The keys this generation's tokens were made with, so that they can be made again. */
  readonly keys: KeyIds;
  /** The form of this generation's access token, so that it can be made again. Left out: `jwt`. */
  readonly format?: TokenFormat;
  /** SHA-256 of the certificate the grant is bound to (RFC 8705), when it is. */
  readonly boundTo?: string;
  readonly revokedAt?: Epoch;
}

export interface KeyIds {
  readonly signing: string;
  readonly sealing: string;
}

export type GrantPhase = 'live' | 'expired' | 'revoked';

/** Phases follow from facts, so nothing has to wake up and move a grant from one to the next. */
export function phaseOf(grant: Grant, now: Epoch): GrantPhase {
  if (grant.revokedAt !== undefined) return 'revoked';
  return now < grant.refreshUntil ? 'live' : 'expired';
}

/** An access token never outlives its grant. */
export const accessExpiry = (now: Epoch, lifetime: number, refreshUntil: Epoch): Epoch =>
  Math.min(wholeSeconds(now) + lifetime, refreshUntil);

export interface RefreshAttempt {
  readonly clientId: string;
  readonly generation: number;
  /** The certificate on this connection, SHA-256. */
  readonly certificate?: string;
  readonly now: Epoch;
  /** When this request reached us. */
  readonly arrivedAt: Epoch;
  /** How long a lost answer can be asked for again; 0 is never. */
  readonly retryWindow: number;
  /** The known outages of gatehouse; asked for only when the answer depends on them. */
  readonly outages: () => readonly Outage[];
  readonly accessLifetime: number;
  readonly keys: KeyIds;
  readonly format?: TokenFormat;
}

/** A time in which gatehouse could not respond: no process was running, or the store was unreachable. */
export interface Outage {
  readonly began: Epoch;
  readonly ended: Epoch;
}

export type RefreshVerdict =
  /** Store this grant, then answer with its tokens. `rolledForward`: the store had lost a later generation. */
  | { readonly kind: 'rotated'; readonly grant: Grant; readonly rolledForward: boolean }
  /** The last answer was lost on its way: answer the same again, store nothing. */
  | { readonly kind: 'repeated'; readonly grant: Grant }
  /** A spent token came back, so two parties hold this grant. */
  | { readonly kind: 'reused'; readonly grant: Grant }
  | { readonly kind: 'refused'; readonly refusal: Refusal };

/** Seconds from judging a rotation to its answer, at most, on a busy machine: the record knows only when it was judged. */
const ROTATION_TAKES = 1;

const refuse = (refusal: Refusal): RefreshVerdict => ({ kind: 'refused', refusal });

/**
 * What a refresh token of this grant is worth now. Whoever loses a race reads the grant again and asks again:
 * the same rules then give the right answer.
 */
export function judgeRefresh(grant: Grant, attempt: RefreshAttempt): RefreshVerdict {
  const { generation, now } = attempt;
  if (grant.clientId !== attempt.clientId) return refuse({ reason: 'client_mismatch', grantId: grant.id });
  if (grant.boundTo !== undefined && grant.boundTo !== attempt.certificate)
    return refuse({ reason: 'certificate_binding_unmet', grantId: grant.id });

  switch (phaseOf(grant, now)) {
    case 'revoked':
      return refuse({ reason: 'grant_revoked' });
    case 'expired':
      return refuse({ reason: 'grant_expired', refreshUntil: grant.refreshUntil });
    case 'live':
      break;
  }

  // The token is sealed, so a number above the record's means that a fail-over set the record back: go on from the token.
  if (generation >= grant.generation)
    return {
      kind: 'rotated',
      rolledForward: generation > grant.generation,
      grant: {
        ...grant,
        generation: generation + 1,
        rotatedAt: now,
        accessExpires: accessExpiry(now, attempt.accessLifetime, grant.refreshUntil),
        keys: attempt.keys,
        format: attempt.format ?? 'jwt',
      },
    };

  if (generation === grant.generation - 1) {
    if (inRetryWindow(grant, attempt)) return { kind: 'repeated', grant };
    // On its way together with the one that spent it, it lost a race; nobody replayed it.
    if (attempt.arrivedAt <= grant.rotatedAt + ROTATION_TAKES)
      return refuse({ reason: 'refresh_token_spent', grantId: grant.id });
  }
  return { kind: 'reused', grant };
}

/**
 * The window counts only time in which gatehouse served. An outage pauses an open window, and never opens a closed one:
 * at the moment it begins, a closed window has already been served in full.
 */
function inRetryWindow(grant: Grant, { now, retryWindow, outages }: RefreshAttempt): boolean {
  // A time far ahead of the clock is from before the clock was set back. It would hold the window open until then.
  if (retryWindow <= 0 || grant.rotatedAt > now + retryWindow) return false;
  if (now < grant.rotatedAt + retryWindow) return true;
  return servedBetween(grant.rotatedAt, now, outages()) < retryWindow;
}

/** Seconds from `from` to `to` without the outages in between, which may overlap. */
export function servedBetween(from: Epoch, to: Epoch, outages: readonly Outage[]): number {
  let served = to - from;
  let counted = from;
  for (const { began, ended } of outages.toSorted((one, other) => one.began - other.began)) {
    const end = Math.min(ended, to);
    const paused = end - Math.max(began, counted);
    if (paused <= 0) continue;
    served -= paused;
    counted = end;
  }
  return served;
}

export function revoked(grant: Grant, now: Epoch): Grant {
  return grant.revokedAt === undefined ? { ...grant, revokedAt: wholeSeconds(now) } : grant;
}

/** A grant's record outlives the grant by a day, so that a late client hears "expired" and not "unknown". */
export const keepGrantUntil = (grant: Grant, atLeast: Epoch = 0): Epoch =>
  Math.max(grant.refreshUntil, atLeast) + 86_400;
