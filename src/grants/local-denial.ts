import type { Epoch } from '../domain/epoch.ts';
import type { Revocation, RevocationLog } from '../ports/revocation-log.ts';

/**
 * Denies here, at once, the grants whose end could not be announced because the store is away, and goes on
 * announcing them. Whoever asked was told to try again; until then this process errs on the safe side.
 */
export interface DenyingLog extends RevocationLog {
  /** Stops announcing; before the store closes. */
  stop(): Promise<void>;
}

export interface DenyingOptions {
  readonly log: RevocationLog;
  readonly now: () => Epoch;
  /** How many grants are denied here at most; the oldest are forgotten first. */
  readonly max?: number;
  readonly retryMilliseconds?: number;
}

export function denyAtOnce(options: DenyingOptions): DenyingLog {
  const { log, now, max = 10_000, retryMilliseconds = 1_000 } = options;
  const denied = new Map<string, Revocation>();
  let timer: NodeJS.Timeout | undefined;
  let trying: Promise<void> | undefined;
  let stopped = false;

  const deny = (grantId: string, revocation: Revocation): void => {
    denied.set(grantId, revocation);
    for (const oldest of denied.keys()) {
      if (denied.size <= max) break;
      denied.delete(oldest);
    }
    later();
  };
  const later = (): void => {
    if (stopped || denied.size === 0 || timer !== undefined || trying !== undefined) return;
    timer = setTimeout(() => {
      timer = undefined;
      trying = announceAll().finally(() => {
        trying = undefined;
        later();
      });
    }, retryMilliseconds).unref();
  };
  const announceAll = async (): Promise<void> => {
    for (const [grantId, revocation] of denied) {
      if (stopped) return;
      try {
        if (now() < revocation.keepUntil) await log.announce(revocation);
        denied.delete(grantId);
      } catch {
        // Still away: those behind it would fare no better.
        return;
      }
    }
  };

  return {
    async announce(revocation) {
      // Only an end is denied early: an access token is superseded together with its refresh, or not at all.
      const ends = revocation.of === 'grant' && revocation.belowGeneration === Number.POSITIVE_INFINITY;
      // Before it is announced: a disk that stalls takes seconds to fail.
      if (ends) deny(revocation.grantId, revocation);
      await log.announce(revocation);
      if (ends) denied.delete(revocation.grantId);
    },
    isRevoked: (bearer) => (denied.size > 0 && denied.has(bearer.grantId)) || log.isRevoked(bearer),
    async stop() {
      stopped = true;
      clearTimeout(timer);
      await trying;
    },
  };
}
