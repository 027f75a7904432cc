import { levelAfter, localBuckets, type Rate, type RateLimit, waitFor } from '../http/rate-limit.ts';
import type { SharedLimits } from '../ports/shared-limits.ts';

export interface SharedLimitOptions {
  readonly shared: SharedLimits;
  /** What is limited: part of every name. */
  readonly name: string;
  readonly rate: Rate;
  /**
   * Every single one is asked for before it is allowed: for guesses, where one too many is one too many. Otherwise
   * somebody who has plenty left is let through at once and counted behind: no round trip, and what several
   * processes let through too much at the same moment is owed, and paid later.
   */
  readonly strict: boolean;
  /** Makes a digest of whom it counts. */
  readonly hide: (text: string) => string;
  readonly now: () => number;
}

const NAMES = 10_000;
/** An allowance of this many is lent to a caller that is new here: most grants are seen once in an hour. */
const MANY = 50;

/**
 * One allowance for all processes. What is known of it here says no without asking; while it cannot be asked this
 * process gives out its part: the allowance divided by those that share it.
 */
export function sharedRateLimit(options: SharedLimitOptions): RateLimit {
  const { shared, name, rate, strict, now } = options;
  const hide = (who: string): string => options.hide(`${name}\n${who}`);
  /** The shared level when it was last heard, filled since: others can only have taken from it meanwhile. */
  const heard = localBuckets(now, NAMES);
  /** What this process may give out alone. Counted along, so that the store's going away opens no fresh budget. */
  const part = localBuckets(now, NAMES);
  const partRate = (): Rate => {
    const sharers = Math.max(1, shared.sharers());
    return { burst: Math.max(1, rate.burst / sharers), perSecond: rate.perSecond / sharers };
  };
  let away = false;

  const draw = async (who: string, amount: number, owed = false): Promise<number> => {
    try {
      const before = await shared.draw(hide(who), rate, amount, owed);
      away = false;
      heard.set(who, levelAfter(before, rate, amount, owed));
      return before;
    } catch (error) {
      away = true;
      throw error;
    }
  };
  return {
    take(who) {
      const level = heard.level(who, rate);
      if (level !== undefined && level < 1 && !away) return waitFor(level, rate);
      const spare = level ?? (rate.burst >= MANY ? rate.burst : 0);
      if (!strict && !away && spare >= rate.burst / 2) {
        heard.draw(who, rate, 1);
        part.draw(who, partRate(), 1, true);
        draw(who, 1, true).catch(() => {});
        return 0;
      }
      return draw(who, 1).then(
        (before) => {
          if (before >= 1) part.draw(who, partRate(), 1, true);
          return waitFor(before, rate);
        },
        () => waitFor(part.draw(who, partRate(), 1), partRate()),
      );
    },
    peek: (who) => (away ? 0 : waitFor(heard.level(who, rate) ?? rate.burst, rate)),
    async giveBack(who) {
      part.draw(who, partRate(), -1);
      await draw(who, -1).catch(() => {});
    },
  };
}
