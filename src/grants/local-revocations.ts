import type { Epoch } from '../domain/epoch.ts';
import type { Revocation, RevocationLog } from '../ports/revocation-log.ts';

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
