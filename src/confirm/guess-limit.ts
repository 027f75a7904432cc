import { boundedCache } from '../http/bounded-cache.ts';
import { type Rate, type RateLimit, rateLimit, type Soon } from '../http/rate-limit.ts';
import type { SharedLimits } from '../ports/shared-limits.ts';
import { type Turns, turns } from './turns.ts';

export const MAX_WRONG_CODES = 5;

/**
 * What the pages remember between requests, made once per process: the configuration may change, a count may
 * not be forgotten by that. All of it is bounded, and what limits guessing is shared with the other processes.
 */
export interface ConfirmMemory {
  /** Wrong codes of a session, so that an old cookie put back does not set the count back. */
  wrongCodes(sessionId: string): Soon<number>;
  /** For as long as a cookie from before could come back. */
  addWrongCodes(sessionId: string, count: number, seconds: number): Soon<void>;
  /** Sign-in attempts by client address. */
  readonly signInsFrom: RateLimit;
  /**
   * Wrong passwords by account, and by typed name where no account has it. Apart, so that made-up names cannot push the
   * counts of accounts out of memory.
   */
  readonly failuresAs: RateLimit;
  readonly failuresAsUnknown: RateLimit;
  /**
   * Wrong codes of addresses that had not guessed before, once everybody's budget is used up: a few addresses that
   * guess all day do not close the page for people who come with the right code. Small, so that many addresses
   * with one guess each do not get far.
   */
  readonly newcomers: RateLimit;
  /** Codes are looked up one after another, passwords one after another for each device request. */
  readonly codeTurns: Turns;
  readonly signInTurns: Turns;
}

export interface SignInRates {
  readonly from: Rate;
  readonly failuresAs: Rate;
}

/** More for an account than one address can send: a single client cannot lock a person out. */
const SIGN_IN_RATES: SignInRates = {
  from: { burst: 20, perSecond: 1 / 3 },
  failuresAs: { burst: 30, perSecond: 1 / 2 },
};

const NEWCOMERS: Rate = { burst: 30, perSecond: 1 / 2 };

export type Guesses = 'signInsFrom' | 'failuresAs' | 'failuresAsUnknown' | 'newcomers';

export interface ConfirmMemoryOptions {
  readonly now: () => number;
  readonly rates?: SignInRates;
  /** Makes the limits; left out, they are this process's own. */
  readonly limit?: (name: Guesses, rate: Rate) => RateLimit;
  /** Where wrong codes of a session are counted for all processes, and under which name. */
  readonly shared?: { readonly limits: SharedLimits; readonly nameOf: (sessionId: string) => string };
}

export function confirmMemory(options: ConfirmMemoryOptions): ConfirmMemory {
  const { now, rates = SIGN_IN_RATES, shared } = options;
  const { limit = (_: Guesses, rate: Rate) => rateLimit(rate, now) } = options;
  const wrong = boundedCache<string, number>(20_000);
  const here = (sessionId: string): number => wrong.get(sessionId) ?? 0;
  return {
    wrongCodes(sessionId) {
      const own = here(sessionId);
      if (shared === undefined || own >= MAX_WRONG_CODES) return own;
      return shared.limits
        .count(shared.nameOf(sessionId), { seconds: 0 }, 0)
        .then((all) => Math.max(own, all));
    },
    addWrongCodes(sessionId, count, seconds) {
      wrong.set(sessionId, here(sessionId) + count);
      if (shared === undefined || count === 0) return;
      return shared.limits.count(shared.nameOf(sessionId), { seconds }, count).then(() => {});
    },
    signInsFrom: limit('signInsFrom', rates.from),
    failuresAs: limit('failuresAs', rates.failuresAs),
    failuresAsUnknown: limit('failuresAsUnknown', rates.failuresAs),
    newcomers: limit('newcomers', NEWCOMERS),
    codeTurns: turns({ waiting: 64, seconds: 10 }),
    signInTurns: turns({ waiting: 8, seconds: 10 }),
  };
}
