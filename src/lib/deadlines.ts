export interface DeadlineEntry {
  /** On the clock of `performance.now()`. */
  deadline: number;
  onTimeout(): void;
  /** `onTimeout` threw. */
  onInternalError(error: unknown): void;
  /** Used by `Deadlines` only. */
  previous: DeadlineEntry | undefined;
  next: DeadlineEntry | undefined;
}

/**
 * Timeouts that are checked together at intervals, since few ever expire and a timer for each costs more. Entries are a
 * linked list, so that adding and removing them creates no garbage.
 */
export type Deadlines = ReturnType<typeof createDeadlines>;

const TICK_MS = 200;
const STALL_MS = 5 * TICK_MS;

export function createDeadlines() {
  let first: DeadlineEntry | undefined;
  let timer: NodeJS.Timeout | undefined;
  let checkedAt = 0;

  const checkAll = (): void => {
    const now = performance.now();
    const expired: DeadlineEntry[] = [];
    // Event-loop stalls do not count: data that arrived meanwhile has not been read yet.
    const stalledMs = now - checkedAt > STALL_MS ? now - checkedAt : 0;
    checkedAt = now;
    for (let entry = first; entry !== undefined; entry = entry.next) {
      entry.deadline += stalledMs;
      if (entry.deadline <= now) expired.push(entry);
    }
    for (const entry of expired) {
      // An earlier `onTimeout` may have removed or extended it.
      if (entry.deadline > now) continue;
      entry.deadline = Number.POSITIVE_INFINITY;
      try {
        entry.onTimeout();
      } catch (error) {
        entry.onInternalError(error);
      }
    }
    if (first !== undefined) return;
    clearInterval(timer);
    timer = undefined;
  };
  return {
    add(entry: DeadlineEntry): void {
      entry.next = first;
      if (first !== undefined) first.previous = entry;
      first = entry;
      if (timer !== undefined) return;
      checkedAt = performance.now();
      timer = setInterval(checkAll, TICK_MS).unref();
    },
    remove(entry: DeadlineEntry): void {
      const { previous, next } = entry;
      if (previous !== undefined) previous.next = next;
      else if (first === entry) first = next;
      if (next !== undefined) next.previous = previous;
      // So that garbage does not keep other garbage alive.
      entry.previous = undefined;
      entry.next = undefined;
      entry.deadline = Number.POSITIVE_INFINITY;
    },
    /**
     * A deadline for a listed entry, without reading the clock: late by two ticks at most, and early by at most the time (below
     * a second) for which the event loop has stalled since the last check.
     */
    deadlineIn: (seconds: number) => checkedAt + TICK_MS + seconds * 1_000,
  };
}
