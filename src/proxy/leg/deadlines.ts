/** Somebody who waits for something, each time for something else. */
export interface Due {
  /** When it is late, by `performance.now()`. */
  deadline: number;
  late(): void;
  /** A mistake of ours. */
  onFault(error: unknown): void;
  /** For `deadlines` alone. */
  before: Due | undefined;
  after: Due | undefined;
}

/**
 * Who waits for what is looked at now and then, all at once: nearly nobody is ever late, and a timer for each costs more
 * than everything else about waiting. Those who wait are chained to each other, so that coming and going leave no garbage.
 */
export interface Deadlines {
  add(who: Due): void;
  remove(who: Due): void;
  /**
   * A deadline for somebody who is listed: later by two ticks at most, and earlier only by as much as the event loop has stood
   * still since the last look, which is less than a second. For those who set several for each request: a look at the clock
   * costs more than all of them.
   */
  in(seconds: number): number;
}

const TICK_MS = 200;
const STOPPED_MS = 5 * TICK_MS;

export function deadlines(): Deadlines {
  let first: Due | undefined;
  let timer: NodeJS.Timeout | undefined;
  let looked = 0;

  const look = (): void => {
    const now = performance.now();
    const late: Due[] = [];
    // A stop of our own is nobody's delay: what came meanwhile has not been read yet.
    const stopped = now - looked > STOPPED_MS ? now - looked : 0;
    looked = now;
    if (stopped > 0) for (let who = first; who !== undefined; who = who.after) who.deadline += stopped;
    for (let who = first; who !== undefined; who = who.after) if (who.deadline <= now) late.push(who);
    for (const who of late) {
      // Whoever was told before may have ended it.
      if (who.deadline > now) continue;
      who.deadline = Number.POSITIVE_INFINITY;
      try {
        who.late();
      } catch (error) {
        who.onFault(error);
      }
    }
    if (first !== undefined) return;
    clearInterval(timer);
    timer = undefined;
  };
  return {
    add(who) {
      who.after = first;
      if (first !== undefined) first.before = who;
      first = who;
      if (timer !== undefined) return;
      looked = performance.now();
      timer = setInterval(look, TICK_MS).unref();
    },
    remove(who) {
      const { before, after } = who;
      if (before !== undefined) before.after = after;
      else if (first === who) first = after;
      if (after !== undefined) after.before = before;
      // Whoever is gone points at nobody, or garbage would keep garbage alive.
      who.before = undefined;
      who.after = undefined;
      who.deadline = Number.POSITIVE_INFINITY;
    },
    in: (seconds) => looked + TICK_MS + seconds * 1_000,
  };
}
