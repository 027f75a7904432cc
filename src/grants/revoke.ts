import { type Epoch, type Grant, getGrantRecordExpiry, markRevoked, type VerifiedToken } from '../domain/grant.ts';
import { type Outcome, ok, refused } from '../domain/refusal.ts';
import { Fault } from '../ports/fault.ts';
import type { Revocation, RevocationLog, StoredRecord } from '../ports/store.ts';
import type { GrantDeps } from './deps.ts';

type RevokeDeps = Pick<GrantDeps, 'store' | 'now' | 'log'> & Partial<Pick<GrantDeps, 'integrations'>>;

const MAX_RACES = 64;

/** Was the grant revoked, even if its record does not show it yet? */
export const isGrantRevoked = (
  { store }: Pick<GrantDeps, 'store'>,
  grant: Pick<Grant, 'id' | 'clientId' | 'identity' | 'issuedAt' | 'issuedAfter' | 'exchangedFrom'>,
): boolean =>
  // Above every generation: an entry that supersedes older tokens does not match.
  store.revocations.isRevoked({ ...grant, grantId: grant.id, generation: Number.MAX_SAFE_INTEGER });

/** Revokes all tokens of a grant. */
const createRevocation = (grantId: string, keepUntil: Epoch): Revocation => ({
  of: 'grant',
  grantId,
  belowGeneration: Number.POSITIVE_INFINITY,
  keepUntil,
});

/** Announces the revocation first, then updates the record: after a crash in between the tokens are rejected. */
export async function revokeGrant(deps: RevokeDeps, grant: Grant): Promise<void> {
  await deps.store.revocations.announce(createRevocation(grant.id, getGrantRecordExpiry(grant)));
  for (let races = 0; races < MAX_RACES; races += 1) {
    const found = await deps.store.grants.read(grant.id);
    if (found === undefined || found.record.revokedAt !== undefined) return;
    const revoked = markRevoked(found.record, found.now);
    const written = await deps.store.grants.replace(grant.id, found.version, revoked, getGrantRecordExpiry(revoked));
    if (written === 'replaced') return;
  }
  throw new Fault('overloaded', `grant ${grant.id} has too many concurrent updates`);
}

/** Ten years: such entries are few. */
const MIN_RETENTION = 10 * 365 * 86_400;

/** The holder whose grants are revoked. */
export type GrantHolder =
  | { readonly of: 'identity'; readonly identity: string }
  | { readonly of: 'client'; readonly clientId: string }
  | { readonly of: 'issuer'; readonly issuer: string };

/**
 * Revokes what was issued so far: all grants of an identity or a client, or all tokens of a trusted issuer. The times in tokens of trusted
 * issuers have a resolution of one second, so those issued in the current second are revoked too. The entry is kept longer than
 * `longestGrant` (seconds), because the records are not updated and older settings may have allowed longer grants. The caller writes the
 * audit event.
 */
export async function revokeAllGrants(
  deps: Pick<GrantDeps, 'store' | 'now'>,
  holder: GrantHolder,
  longestGrant: number,
): Promise<void> {
  // With a clock that is behind, the newest tokens of trusted issuers would survive.
  const now = Math.floor(Math.max(deps.now(), deps.store.time?.() ?? 0));
  const keepUntil = now + Math.max(longestGrant, MIN_RETENTION) + 86_400;
  await deps.store.revocations.announce({ ...holder, notBefore: now + 1, keepUntil });
}

/**
 * Revokes the tokens of a trusted issuer with this id, whenever they were issued: those with one `jti`, or of one session.
 * The caller writes the audit event.
 */
export const revokeForeignTokens = (
  { store, now }: Pick<GrantDeps, 'store' | 'now'>,
  id: string,
  retention = MIN_RETENTION,
): Promise<void> => store.revocations.announce(createRevocation(id, Math.ceil(now()) + retention));

interface RevokeOptions {
  /** For the audit event: the presented credential. */
  readonly by: 'access_token' | 'refresh_token';
  /** If set, grants of other clients are not revoked. */
  readonly clientId?: string;
}

/** Revokes the grant of an authentic token, even if the token itself is no longer valid. */
export async function revokeByToken(
  deps: RevokeDeps,
  { grantId, expires }: Pick<VerifiedToken, 'grantId' | 'expires'>,
  { by, clientId }: RevokeOptions,
): Promise<Outcome<Grant | undefined>> {
  // Used when the record cannot be read. An attacker could restore an earlier version of it, so the entry is kept until
  // no grant that exists today can be refreshed.
  const longestGrant = Math.max(0, ...(deps.integrations?.values() ?? []).map(({ grantLifetime }) => grantLifetime));
  const keepUntil = Math.max(expires, Math.ceil(deps.now()) + longestGrant) + 86_400;
  const revocation = createRevocation(grantId, keepUntil);
  let found: StoredRecord<Grant> | undefined;
  try {
    found = await deps.store.grants.read(grantId);
  } catch (error) {
    // The request fails, but this process rejects the token from now on, and announces that once the store responds.
    deps.store.revocations.announce(revocation).catch(() => {});
    throw error;
  }
  if (found === undefined) {
    // Without a record nothing can be refreshed, but the access token must be revoked.
    await deps.store.revocations.announce(revocation);
    return ok(undefined);
  }
  const { record } = found;
  if (clientId !== undefined && clientId !== record.clientId) return refused({ reason: 'client_mismatch', grantId });
  await revokeGrant(deps, record);
  if (record.revokedAt === undefined)
    deps.log.audit('grant_revoked', { grant: grantId, client: record.clientId, identity: record.identity, by });
  return ok(record);
}

interface LocalRevocationsOptions {
  readonly log: RevocationLog;
  readonly now: () => Epoch;
  /** Grants kept here; the oldest are dropped first. */
  readonly max?: number;
  readonly retryMs?: number;
}

/**
 * Rejects revoked grants in this process even if the store is unreachable, and retries the announcement. The client got
 * an error and retries as well.
 */
export function createLocalRevocations({
  log,
  now,
  max = 10_000,
  retryMs = 1_000,
}: LocalRevocationsOptions): RevocationLog & { stop(): Promise<void> } {
  const revoked = new Map<string, Revocation>();
  let timer: NodeJS.Timeout | undefined;
  let retrying: Promise<void> | undefined;
  let stopped = false;

  const rejectLocally = (grantId: string, revocation: Revocation): void => {
    revoked.set(grantId, revocation);
    for (const oldest of revoked.keys()) {
      if (revoked.size <= max) break;
      revoked.delete(oldest);
    }
    scheduleRetry();
  };
  const scheduleRetry = (): void => {
    if (stopped || revoked.size === 0 || timer !== undefined || retrying !== undefined) return;
    timer = setTimeout(() => {
      timer = undefined;
      retrying = announceAll().finally(() => {
        retrying = undefined;
        scheduleRetry();
      });
    }, retryMs).unref();
  };
  const announceAll = async (): Promise<void> => {
    for (const [grantId, revocation] of revoked) {
      if (stopped) return;
      try {
        if (now() < revocation.keepUntil) await log.announce(revocation);
        revoked.delete(grantId);
      } catch {
        // Still unreachable.
        return;
      }
    }
  };

  return {
    async announce(revocation) {
      // Not for superseded tokens: they are superseded together with the refresh, or not at all.
      const revokesGrant = revocation.of === 'grant' && revocation.belowGeneration === Number.POSITIVE_INFINITY;
      // Before the announcement, because a stalled disk takes seconds to fail.
      if (revokesGrant) rejectLocally(revocation.grantId, revocation);
      await log.announce(revocation);
      if (revokesGrant) revoked.delete(revocation.grantId);
    },
    isRevoked: (bearer) =>
      (revoked.size > 0 &&
        (revoked.has(bearer.grantId) || (bearer.sessionId !== undefined && revoked.has(bearer.sessionId)))) ||
      log.isRevoked(bearer),
    getLastNumber: () => log.getLastNumber(),
    /** Before the store closes. */
    async stop() {
      stopped = true;
      clearTimeout(timer);
      await retrying;
    },
  };
}
