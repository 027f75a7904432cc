import type { Epoch } from '../../domain/epoch.ts';
import { Fault } from '../../ports/fault.ts';
import { MAX_SKEW_SECONDS } from '../../ports/store.ts';
import { SKEW_WARNING_SECONDS } from './startup-checks.ts';

const CHECK_INTERVAL_MS = 1_000;

/**
 * Compares the clock of this host with the server's. Tokens contain local times and are judged by the server's: while the
 * clocks differ too much, none are issued. Existing tokens are still accepted.
 */
export function createClockGuard(
  localTime: (() => Epoch) | undefined,
  serverTime: () => Epoch,
  report?: (message: string) => void,
) {
  if (localTime === undefined) return { findProblem: () => undefined, requireAgreement: () => {}, stop: () => {} };
  const readSkew = (): number => Math.abs(localTime() - serverTime());
  let reported: 'agree' | 'differ' | 'refused' = 'agree';
  const check = (): void => {
    const skew = readSkew();
    const state = skew > MAX_SKEW_SECONDS ? 'refused' : skew > SKEW_WARNING_SECONDS ? 'differ' : 'agree';
    if (state === reported) return;
    reported = state;
    if (state === 'agree') return report?.('the clocks of Redis and this host agree again');
    const consequence = state === 'refused' ? '; no tokens are issued' : '';
    report?.(`the clocks of Redis and this host differ by ${skew.toFixed(1)} s${consequence}`);
  };
  const timer = setInterval(check, CHECK_INTERVAL_MS).unref();
  const findProblem = (): string | undefined => {
    const skew = readSkew();
    return skew > MAX_SKEW_SECONDS ? `the clocks of Redis and this host differ by ${Math.round(skew)} s` : undefined;
  };
  return {
    /** Undefined while the clocks agree. */
    findProblem,
    /** Throws when the clocks differ too much. */
    requireAgreement(): void {
      const problem = findProblem();
      if (problem !== undefined) throw new Fault('store_unavailable', problem);
    },
    stop: () => clearInterval(timer),
  };
}

export type ClockGuard = ReturnType<typeof createClockGuard>;
