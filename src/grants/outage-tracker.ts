import type { Epoch } from '../domain/epoch.ts';
import type { Outage } from '../domain/grant.ts';
import { Fault } from '../ports/fault.ts';
import { KEEP_FOREVER, type Store } from '../ports/store.ts';

/**
 * Renews a lease in the store at short intervals, so that the start of an outage is known after a crash. A process that
 * finds the lease expired records the outage for all processes.
 *
 * An outage never starts later than the lease expires, so a retry window that had closed before stays closed; an open
 * window loses at most the lease. Times are by the store's clock. A running process also measures with its own clocks
 * how long it could not renew, so that a step of the store's clock is not taken for an outage.
 */
export interface OutageTracker {
  /** Outages that pause the retry window of a rotation at `rotatedAt`, including a current one. Throws while unknown. */
  getOutages(now: Epoch, rotatedAt: Epoch): readonly Outage[];
  /** Resolves after the first attempt to renew the lease. */
  start(): Promise<void>;
  stop(): Promise<void>;
}

export interface OutageTrackerOptions {
  readonly store: Pick<Store, 'notes' | 'waitUntilDurable'>;
  /** Seconds, as currently configured. Determines the lease. */
  readonly retryWindow: () => number;
  /** Starts a measurement of elapsed seconds. */
  readonly startStopwatch?: () => () => number;
  /** The store is reachable, but the note cannot be read. Called once until it can. */
  readonly onUnreadable?: (fault: Fault) => void;
}

const SERVING_NOTE = 'serving';

const LEASE = { min: 0.25, max: 2 };
/** At most a quarter of the retry window, so that a response lost in a crash can be repeated. */
const computeLease = (retryWindow: number): number =>
  retryWindow <= 0 ? LEASE.max : Math.min(LEASE.max, Math.max(LEASE.min, retryWindow / 4));

/** The oldest are dropped first. */
const MAX_OUTAGES = 32;
/** A concurrent write of another process renews the lease as well. */
const MAX_ATTEMPTS = 8;

/** Monotonic time stands still while the machine sleeps; wall time does not. */
const startRealStopwatch = (): (() => number) => {
  const [monotonic, wall] = [performance.now(), Date.now()];
  return () => Math.max(performance.now() - monotonic, Date.now() - wall) / 1_000;
};

export function createOutageTracker(options: OutageTrackerOptions): OutageTracker {
  const { store, retryWindow, startStopwatch = startRealStopwatch, onUnreadable } = options;
  /** Outages of all processes, from the store. */
  let sharedOutages: readonly Outage[] = [];
  /** Outages of this process while others may have served. */
  let ownOutages: readonly Outage[] = [];
  /** Periods without the store. Rotations in them were made by other processes, so own outages do not pause them. */
  let unreachablePeriods: readonly Outage[] = [];
  let lastMark: { readonly until: Epoch; readonly lease: number; readonly elapsed: () => number } | undefined;
  /** Seconds since the store was reached. */
  let sinceReached: (() => number) | undefined;
  let isUnreadable = false;
  let timer: NodeJS.Timeout | undefined;
  let marking: Promise<void> | undefined;
  let stopped = false;

  /** When the lease lapsed; `now` if it did not. Less than one lease late is tolerated. */
  const getLapseTime = (now: Epoch, { until, lease, elapsed }: NonNullable<typeof lastMark>): Epoch => {
    const overdue = elapsed() - lease;
    return overdue < lease ? now : Math.max(until, now - overdue);
  };

  const tryMark = async (): Promise<boolean> => {
    const elapsed = startStopwatch();
    const lease = computeLease(retryWindow());
    const found = await store.notes.read(SERVING_NOTE);
    if (found === undefined) {
      await store.notes.create(SERVING_NOTE, formatNote({ until: 0, outages: [] }), KEEP_FOREVER);
      return false;
    }
    const { now } = found;
    const unreachableSeconds = sinceReached?.() ?? 0;
    if (unreachableSeconds >= 2 * lease)
      unreachablePeriods = appendOutage(unreachablePeriods, {
        began: now - unreachableSeconds + lease,
        ended: now,
      });
    sinceReached = elapsed;
    isUnreadable = false;
    const previous = parseNote(found.record);
    const lapsed = lastMark === undefined ? 0 : getLapseTime(now, lastMark);
    const began = Math.max(previous.until, lapsed);
    const isOutage = previous.until > 0 && began < now;
    const outages = isOutage ? appendOutage(previous.outages, { began, ended: now }) : previous.outages;
    const wasClockSetBack = previous.until > now + 2 * LEASE.max;
    if (isOutage || wasClockSetBack || previous.until < now + lease * 0.75) {
      const note = formatNote({ until: now + lease, outages });
      if ((await store.notes.replace(SERVING_NOTE, found.version, note, KEEP_FOREVER)) === 'stale')
        return false;
    }
    // Another process may have renewed the lease, while writes of this one are not durable.
    await store.waitUntilDurable();
    sinceReached = startStopwatch();
    sharedOutages = outages;
    if (lastMark !== undefined && lapsed < now)
      ownOutages = appendOutage(ownOutages, { began: lapsed, ended: now });
    lastMark = { until: now + lease, lease, elapsed };
    return true;
  };
  /** An unreadable note is no outage: otherwise an attacker with write access could keep retry windows open. */
  const countAsServed = (): void => {
    sinceReached = startStopwatch();
    lastMark = { until: lastMark?.until ?? 0, lease: computeLease(retryWindow()), elapsed: sinceReached };
  };
  const mark = async (): Promise<void> => {
    try {
      for (let attempts = 0; attempts < MAX_ATTEMPTS; attempts += 1) if (await tryMark()) return;
      // Other processes renew the lease constantly. Before the first own mark, their outages are unknown.
      if (lastMark !== undefined) countAsServed();
    } catch (error) {
      // The store logs its failures.
      if (!(error instanceof Fault && error.code === 'store_record_unreadable')) return;
      if (!isUnreadable) onUnreadable?.(error);
      isUnreadable = true;
      countAsServed();
    }
  };
  const markRepeatedly = async (): Promise<void> => {
    marking = mark();
    await marking;
    if (!stopped) timer = setTimeout(() => void markRepeatedly(), computeLease(retryWindow()) * 500).unref();
  };

  return {
    getOutages(now, rotatedAt) {
      if (lastMark === undefined)
        throw new Fault('store_unavailable', 'the time of the last service is not known yet');
      const lapsed = getLapseTime(now, lastMark);
      if (lapsed < now && rotatedAt > lapsed && (sinceReached?.() ?? 0) >= 2 * lastMark.lease)
        throw new Fault('store_unavailable', 'it is not known yet whether other processes were available');
      const unreachablePeriod = unreachablePeriods.find(
        ({ began, ended }) => began < rotatedAt && rotatedAt < ended,
      );
      const pausing = lapsed < now ? [...ownOutages, { began: lapsed, ended: now }] : ownOutages;
      return [
        ...sharedOutages,
        ...(unreachablePeriod === undefined ? pausing : clipOutages(unreachablePeriod.ended, pausing)),
      ];
    },
    start: markRepeatedly,
    async stop() {
      stopped = true;
      clearTimeout(timer);
      await marking;
    },
  };
}

interface OutageNote {
  readonly until: Epoch;
  readonly outages: readonly Outage[];
}

const clipOutages = (from: Epoch, outages: readonly Outage[]): readonly Outage[] =>
  outages.flatMap(({ began, ended }) => (ended > from ? [{ began: Math.max(began, from), ended }] : []));

const appendOutage = (outages: readonly Outage[], outage: Outage): readonly Outage[] =>
  [...outages, outage].slice(-MAX_OUTAGES);

const formatNote = ({ until, outages }: OutageNote): Readonly<Record<string, string>> => ({
  until: String(until),
  outages: outages.map(({ began, ended }) => `${began}-${ended}`).join(' '),
});

/** Unreadable entries are ignored. */
function parseNote({ until, outages = '' }: Readonly<Record<string, string>>): OutageNote {
  const pairs = outages.split(' ').map((pair) => pair.split('-').map(Number));
  return {
    until: Number(until) || 0,
    outages: pairs.flatMap(([began = Number.NaN, ended = Number.NaN]) =>
      Number.isFinite(began) && Number.isFinite(ended) ? [{ began, ended }] : [],
    ),
  };
}
