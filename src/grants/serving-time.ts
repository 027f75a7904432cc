import type { Epoch } from '../domain/epoch.ts';
import type { Outage } from '../domain/grant.ts';
import { Fault } from '../ports/fault.ts';
import { KEEP_FOREVER, type Store } from '../ports/store.ts';

/**
 * Records in the store, at short intervals, until when gatehouse is known to serve, so that the begin of an outage is
 * known after a crash. A process that finds this time in the past records the outage for all processes.
 *
 * The recorded time is a lease: at most `lease` seconds after the last mark. The true begin of an outage is never later,
 * so a retry window that had closed before it stays closed; a window that was just opened loses at most the lease.
 * Times are by the store's clock. A running process also measures by its own clocks how long it could not mark, and
 * takes no step of the store's clock for an outage. A clock that was set back records none.
 */
export interface ServingTime {
  /**
   * Every outage that may pause the retry window of a rotation at `rotatedAt`, one that goes on included. Throws while it is
   * not known.
   */
  outages(now: Epoch, rotatedAt: Epoch): readonly Outage[];
  /** Resolves after the first mark. While the store is unreachable the marks are tried again. */
  start(): Promise<void>;
  stop(): Promise<void>;
}

export interface ServingTimeOptions {
  readonly store: Pick<Store, 'notes' | 'settled'>;
  /** Seconds, as configured now; decides how exactly outages are measured. */
  readonly retryWindow: () => number;
  /** Starts a measurement of elapsed seconds. */
  readonly stopwatch?: () => () => number;
  /** The store is reachable, and its note about serving time cannot be read. Called once until it can. */
  readonly onUnreadable?: (fault: Fault) => void;
}

export const SERVING_NOTE = 'serving';

const LEASE = { least: 0.25, most: 2 };
/** A quarter of the window at most, so that a response lost in a crash can still be repeated. */
const leaseFor = (retryWindow: number): number =>
  retryWindow <= 0 ? LEASE.most : Math.min(LEASE.most, Math.max(LEASE.least, retryWindow / 4));

/** The oldest are dropped first; a dropped outage counts as served. */
const MOST_OUTAGES = 32;
/** Another process that writes at the same time has marked as well. */
const MOST_TRIES = 8;

/** Monotonic time stands still while the machine sleeps; wall time does not. */
const realStopwatch = (): (() => number) => {
  const [monotonic, wall] = [performance.now(), Date.now()];
  return () => Math.max(performance.now() - monotonic, Date.now() - wall) / 1_000;
};

export function servingTime(options: ServingTimeOptions): ServingTime {
  const { store, retryWindow, stopwatch = realStopwatch, onUnreadable } = options;
  /** Outages of all processes, as the store has them. */
  let shared: readonly Outage[] = [];
  /** Outages of this process while others may have served. */
  let own: readonly Outage[] = [];
  /**
   * Times in which this process did not reach the store. A rotation in such a time is another process's, and so was the
   * time after it: it is not paused by the outages of this one.
   */
  let gaps: readonly Outage[] = [];
  let last: { readonly until: Epoch; readonly lease: number; readonly elapsed: () => number } | undefined;
  /** Since when the store was last reached. */
  let unreached: (() => number) | undefined;
  let isUnreadable = false;
  let timer: NodeJS.Timeout | undefined;
  let marking: Promise<void> | undefined;
  let stopped = false;

  /** When this process stopped to mark in time; `now` if it did not. A mark that is late by less than a lease counts. */
  const lapsedAt = (now: Epoch, { until, lease, elapsed }: NonNullable<typeof last>): Epoch => {
    const late = elapsed() - lease;
    return late < lease ? now : Math.max(until, now - late);
  };

  const tryToMark = async (): Promise<boolean> => {
    const elapsed = stopwatch();
    const lease = leaseFor(retryWindow());
    const found = await store.notes.read(SERVING_NOTE);
    if (found === undefined) {
      await store.notes.create(SERVING_NOTE, written({ until: 0, outages: [] }), KEEP_FOREVER);
      return false;
    }
    const { now } = found;
    const silent = unreached?.() ?? 0;
    if (silent >= 2 * lease) gaps = added(gaps, { began: now - silent + lease, ended: now });
    unreached = elapsed;
    isUnreadable = false;
    const before = readNote(found.record);
    const lapsed = last === undefined ? 0 : lapsedAt(now, last);
    const began = Math.max(before.until, lapsed);
    const isOutage = before.until > 0 && began < now;
    const outages = isOutage ? added(before.outages, { began, ended: now }) : before.outages;
    const isSetBack = before.until > now + 2 * LEASE.most;
    if (isOutage || isSetBack || before.until < now + lease * 0.75) {
      const note = written({ until: now + lease, outages });
      if ((await store.notes.replace(SERVING_NOTE, found.version, note, KEEP_FOREVER)) === 'stale')
        return false;
    }
    // Another process may have written the mark, while writes of this one are not confirmed.
    await store.settled();
    unreached = stopwatch();
    shared = outages;
    if (last !== undefined && lapsed < now) own = added(own, { began: lapsed, ended: now });
    last = { until: now + lease, lease, elapsed };
    return true;
  };
  /** The store is reachable and only its note is not usable: that is no outage, or an attacker who can write to it could hold windows open. */
  const countAsServed = (): void => {
    unreached = stopwatch();
    last = { until: last?.until ?? 0, lease: leaseFor(retryWindow()), elapsed: unreached };
  };
  const mark = async (): Promise<void> => {
    try {
      for (let tries = 0; tries < MOST_TRIES; tries += 1) if (await tryToMark()) return;
      // Others mark all the time. Their outages are not known here before the first mark.
      if (last !== undefined) countAsServed();
    } catch (error) {
      // The store logs its own failures. The lease lapses meanwhile.
      if (!(error instanceof Fault && error.code === 'store_record_unreadable')) return;
      if (!isUnreadable) onUnreadable?.(error);
      isUnreadable = true;
      countAsServed();
    }
  };
  const markOn = async (): Promise<void> => {
    marking = mark();
    await marking;
    if (!stopped) timer = setTimeout(() => void markOn(), leaseFor(retryWindow()) * 500).unref();
  };

  return {
    outages(now, rotatedAt) {
      if (last === undefined)
        throw new Fault('store_unavailable', 'it is not known yet when gatehouse served last');
      const lapsed = lapsedAt(now, last);
      if (lapsed < now && rotatedAt > lapsed && (unreached?.() ?? 0) >= 2 * last.lease)
        throw new Fault('store_unavailable', 'it is not known yet whether other processes served');
      const gap = gaps.find(({ began, ended }) => began < rotatedAt && rotatedAt < ended);
      const mayPause = lapsed < now ? [...own, { began: lapsed, ended: now }] : own;
      return [...shared, ...(gap === undefined ? mayPause : since(gap.ended, mayPause))];
    },
    start: markOn,
    async stop() {
      stopped = true;
      clearTimeout(timer);
      await marking;
    },
  };
}

interface ServingNote {
  readonly until: Epoch;
  readonly outages: readonly Outage[];
}

/** What of these outages is after a moment. */
const since = (moment: Epoch, outages: readonly Outage[]): readonly Outage[] =>
  outages.flatMap(({ began, ended }) => (ended > moment ? [{ began: Math.max(began, moment), ended }] : []));

const added = (outages: readonly Outage[], outage: Outage): readonly Outage[] =>
  [...outages, outage].slice(-MOST_OUTAGES);

const written = ({ until, outages }: ServingNote): Readonly<Record<string, string>> => ({
  until: String(until),
  outages: outages.map(({ began, ended }) => `${began}-${ended}`).join(' '),
});

/** What cannot be read is not taken for an outage. */
function readNote({ until, outages = '' }: Readonly<Record<string, string>>): ServingNote {
  const pairs = outages.split(' ').map((pair) => pair.split('-').map(Number));
  return {
    until: Number(until) || 0,
    outages: pairs.flatMap(([began = Number.NaN, ended = Number.NaN]) =>
      Number.isFinite(began) && Number.isFinite(ended) ? [{ began, ended }] : [],
    ),
  };
}
