import { LRUCache } from 'lru-cache';
import { type Rate, type RateLimit, rateLimit } from '../http/rate-limit.ts';
import { type Turns, turns } from './turns.ts';

export const MAX_WRONG_CODES = 5;

/**
 * What the pages remember between requests, made once per process: the configuration may change, a count may
 * not be forgotten by that. All of it is bounded.
 */
export interface ConfirmMemory {
  /** Wrong codes of a session, so that an old cookie put back does not set the count back. */
  wrongCodes(sessionId: string): number;
  setWrongCodes(sessionId: string, count: number): void;
  /** Sign-in attempts by client address, and failed ones by the name that was typed. */
  readonly signInsFrom: RateLimit;
  readonly failuresAs: RateLimit;
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

/** A name can bear more than one address can send: a single caller cannot keep a person from signing in. */
const SIGN_IN_RATES: SignInRates = {
  from: { burst: 20, perSecond: 1 / 3 },
  failuresAs: { burst: 30, perSecond: 1 / 2 },
};

const NEWCOMERS: Rate = { burst: 30, perSecond: 1 / 2 };

export function confirmMemory(now: () => number, rates: SignInRates = SIGN_IN_RATES): ConfirmMemory {
  const wrong = new LRUCache<string, number>({ max: 20_000 });
  return {
    wrongCodes: (sessionId) => wrong.get(sessionId) ?? 0,
    setWrongCodes: (sessionId, count) => void wrong.set(sessionId, count),
    signInsFrom: rateLimit(rates.from, now),
    failuresAs: rateLimit(rates.failuresAs, now),
    newcomers: rateLimit(NEWCOMERS, now),
    codeTurns: turns({ waiting: 64, seconds: 10 }),
    signInTurns: turns({ waiting: 8, seconds: 10 }),
  };
}
