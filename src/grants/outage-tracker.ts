import type { Epoch, Outage } from '../domain/grant.ts';
import { Fault } from '../ports/fault.ts';
import { KEEP_FOREVER, type Note, type Store } from '../ports/store.ts';

interface OutageTrackerOptions {
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

/** Monotonic time does not advance while the machine sleeps; wall time does. */
const startRealStopwatch = (): (() => number) => {
  const [monotonic, wall] = [performance.now(), Date.now()];
  return () => Math.max(performance.now() - monotonic, Date.now() - wall) / 1_000;
};

/** The last renewal of the lease by this process. */
interface Renewal {
  readonly until: Epoch;
  readonly lease: number;
  readonly elapsed: () => number;
}

/** When the lease lapsed; `now` if it did not. Less than one lease late is tolerated. */
function getLapseTime({ until, lease, elapsed }: Renewal, now: Epoch): Epoch {
  const overdue = elapsed() - lease;
  return overdue < lease ? now : Math.max(until, now - overdue);
}

/**
 * Renews a lease in the store at short intervals, so that the start of an outage is known after a crash. A process that
 * finds the lease expired records the outage for all processes.
 *
 * An outage never starts later than the lease expires, so a retry window that had closed before stays closed; an open
 * window loses at most the lease. Times are by the store's clock. A running process also measures with its own clocks
 * how long it could not renew, so that a step of the store's clock is not mistaken for an outage.
 */
export class OutageTracker {
  readonly #options: OutageTrackerOptions;
  readonly #startStopwatch: () => () => number;
  /** Outages of all processes, from the store. */
  #sharedOutages: readonly Outage[] = [];
  /** Outages of this process while others may have served. */
  #ownOutages: readonly Outage[] = [];
  /** Periods without the store. Rotations in them were made by other processes, so own outages do not pause them. */
  #unreachablePeriods: readonly Outage[] = [];
  #lastRenewal: Renewal | undefined;
  #secondsSinceReached = (): number => 0;
  #isUnreadable = false;
  #timer: NodeJS.Timeout | undefined;
  #renewing: Promise<void> | undefined;
  #isStopped = false;

  constructor(options: OutageTrackerOptions) {
    this.#options = options;
    this.#startStopwatch = options.startStopwatch ?? startRealStopwatch;
  }

  /** Outages that pause the retry window of a rotation at `rotatedAt`, including a current one. Throws while unknown. */
  getOutages(now: Epoch, rotatedAt: Epoch): readonly Outage[] {
    const last = this.#lastRenewal;
    if (last === undefined) throw new Fault('store_unavailable', 'the time of the last service is not known yet');
    const lapsed = getLapseTime(last, now);
    if (lapsed < now && rotatedAt > lapsed && this.#secondsSinceReached() >= 2 * last.lease)
      throw new Fault('store_unavailable', 'it is not known yet whether other processes were available');
    const unreachablePeriod = this.#unreachablePeriods.find(
      ({ began, ended }) => began < rotatedAt && rotatedAt < ended,
    );
    const pausing = lapsed < now ? [...this.#ownOutages, { began: lapsed, ended: now }] : this.#ownOutages;
    return [
      ...this.#sharedOutages,
      ...(unreachablePeriod === undefined ? pausing : clipOutages(unreachablePeriod.ended, pausing)),
    ];
  }

  /** Resolves after the first attempt to renew the lease; the next ones run on a timer. */
  async start(): Promise<void> {
    this.#renewing = this.#renew();
    await this.#renewing;
    if (!this.#isStopped) this.#timer = setTimeout(() => void this.start(), this.#getLease() * 500).unref();
  }

  async stop(): Promise<void> {
    this.#isStopped = true;
    clearTimeout(this.#timer);
    await this.#renewing;
  }

  #getLease(): number {
    return computeLease(this.#options.retryWindow());
  }

  async #renew(): Promise<void> {
    try {
      for (let attempts = 0; attempts < MAX_ATTEMPTS; attempts += 1) if (await this.#tryRenew()) return;
      // Other processes renew the lease constantly. Before the first own renewal, their outages are unknown.
      if (this.#lastRenewal !== undefined) this.#countAsServed();
    } catch (error) {
      // The store logs its failures.
      if (!(error instanceof Fault && error.code === 'store_record_unreadable')) return;
      if (!this.#isUnreadable) this.#options.onUnreadable?.(error);
      this.#isUnreadable = true;
      this.#countAsServed();
    }
  }

  /** False if the note was just created, or written by another process in the meantime. */
  async #tryRenew(): Promise<boolean> {
    const { store } = this.#options;
    const elapsed = this.#startStopwatch();
    const lease = this.#getLease();
    const found = await store.notes.read(SERVING_NOTE);
    if (found === undefined) {
      await store.notes.create(SERVING_NOTE, formatNote({ until: 0, outages: [] }), KEEP_FOREVER);
      return false;
    }
    const { now } = found;
    this.#recordReached(now, lease, elapsed);
    const last = this.#lastRenewal;
    const lapsed = last === undefined ? 0 : getLapseTime(last, now);
    const note = parseNote(found.record);
    const renewed = renewNote(note, { now, lease, lapsed });
    if (renewed !== note) {
      const record = formatNote(renewed);
      if ((await store.notes.replace(SERVING_NOTE, found.version, record, KEEP_FOREVER)) === 'stale') return false;
    }
    // Another process may have renewed the lease, while writes of this one are not durable.
    await store.waitUntilDurable();
    this.#secondsSinceReached = this.#startStopwatch();
    this.#sharedOutages = renewed.outages;
    if (last !== undefined && lapsed < now)
      this.#ownOutages = appendOutage(this.#ownOutages, { began: lapsed, ended: now });
    this.#lastRenewal = { until: now + lease, lease, elapsed };
    return true;
  }

  #recordReached(now: Epoch, lease: number, elapsed: () => number): void {
    const unreachableSeconds = this.#secondsSinceReached();
    if (unreachableSeconds >= 2 * lease)
      this.#unreachablePeriods = appendOutage(this.#unreachablePeriods, {
        began: now - unreachableSeconds + lease,
        ended: now,
      });
    this.#secondsSinceReached = elapsed;
    this.#isUnreadable = false;
  }

  /** An unreadable note is no outage: otherwise an attacker with write access could keep retry windows open. */
  #countAsServed(): void {
    const elapsed = this.#startStopwatch();
    this.#secondsSinceReached = elapsed;
    this.#lastRenewal = { until: this.#lastRenewal?.until ?? 0, lease: this.#getLease(), elapsed };
  }
}

interface OutageNote {
  readonly until: Epoch;
  readonly outages: readonly Outage[];
}

/** Renews the lease, and adds an outage if it had lapsed. Returns `note` itself if another process has just renewed it. */
function renewNote(
  note: OutageNote,
  { now, lease, lapsed }: { readonly now: Epoch; readonly lease: number; readonly lapsed: Epoch },
): OutageNote {
  const { until, outages } = note;
  const began = Math.max(until, lapsed);
  const isOutage = until > 0 && began < now;
  const wasClockSetBack = until > now + 2 * LEASE.max;
  if (!isOutage && !wasClockSetBack && until >= now + lease * 0.75) return note;
  return { until: now + lease, outages: isOutage ? appendOutage(outages, { began, ended: now }) : outages };
}

const clipOutages = (from: Epoch, outages: readonly Outage[]): readonly Outage[] =>
  outages.flatMap(({ began, ended }) => (ended > from ? [{ began: Math.max(began, from), ended }] : []));

const appendOutage = (outages: readonly Outage[], outage: Outage): readonly Outage[] =>
  [...outages, outage].slice(-MAX_OUTAGES);

const formatNote = ({ until, outages }: OutageNote): Note => ({
  until: String(until),
  outages: outages.map(({ began, ended }) => `${began}-${ended}`).join(' '),
});

/** Unreadable entries are ignored. */
function parseNote({ until, outages = '' }: Note): OutageNote {
  const pairs = outages.split(' ').map((pair) => pair.split('-').map(Number));
  return {
    until: Number(until) || 0,
    outages: pairs.flatMap(([began = Number.NaN, ended = Number.NaN]) =>
      Number.isFinite(began) && Number.isFinite(ended) ? [{ began, ended }] : [],
    ),
  };
}
