import type { Epoch } from '../domain/epoch.ts';
import { Fault } from '../ports/fault.ts';
import { SKEW_REFUSED, SKEW_SAID } from './redis-checks.ts';

/**
 * Holds our clock against the server's. What is issued carries times of ours and is judged by times of the server:
 * when they are far apart nothing is issued until they agree again. Tokens that exist are judged all the same.
 */
export interface ClockGuard {
  /** Throws when clocks differ by too much. */
  require(): void;
  stop(): void;
}

const LOOK_MS = 1_000;

export function clockGuard({
  ours,
  theirs,
  tell,
}: {
  readonly ours: (() => Epoch) | undefined;
  readonly theirs: () => Epoch;
  readonly tell?: ((what: string) => void) | undefined;
}): ClockGuard {
  if (ours === undefined) return { require: () => {}, stop: () => {} };
  const skew = (): number => Math.abs(ours() - theirs());
  let said: 'agree' | 'differ' | 'refused' = 'agree';
  const look = (): void => {
    const now = skew();
    const state = now > SKEW_REFUSED ? 'refused' : now > SKEW_SAID ? 'differ' : 'agree';
    if (state === said) return;
    said = state;
    if (state === 'agree') tell?.('the clock of Redis and ours agree again');
    else
      tell?.(
        `the clock of Redis and ours differ by ${now.toFixed(1)} s${state === 'refused' ? '; nothing is issued' : ''}`,
      );
  };
  const timer = setInterval(look, LOOK_MS).unref();
  return {
    require() {
      const now = skew();
      if (now > SKEW_REFUSED)
        throw new Fault('store_unavailable', `its clock and ours differ by ${Math.round(now)} s`);
    },
    stop: () => clearInterval(timer),
  };
}
