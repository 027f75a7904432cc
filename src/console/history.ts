import type { Snapshot } from '../observability/metric-registry.ts';
import { METRICS, type MetricName } from '../observability/metric-table.ts';

interface LabelledSample {
  readonly labels: Readonly<Record<string, string>>;
  readonly value: number;
}

export function readSamples(snapshot: Snapshot, name: MetricName): readonly LabelledSample[] {
  return (snapshot[name] ?? []).map(([labels, value]) => ({ labels: parseLabels(labels), value }));
}

/** Undefined if there is no such series. */
export const readTotal = (snapshot: Snapshot, name: MetricName): number | undefined =>
  snapshot[name]?.reduce((total, [, value]) => total + value, 0);

export type Counts = ReadonlyMap<string, number>;

export const sumCounts = (counts: Counts): number => counts.values().reduce((sum, count) => sum + count, 0);

/** Sums by name. */
export function addCounts(counts: Iterable<readonly [name: string, count: number]>): Counts {
  const sums = new Map<string, number>();
  for (const [name, count] of counts) sums.set(name, (sums.get(name) ?? 0) + count);
  return sums;
}

/** Sums by one label. */
export const sumBy = (snapshot: Snapshot, name: MetricName, label: string): Counts =>
  addCounts(readSamples(snapshot, name).map(({ labels, value }) => [labels[label] ?? '', value]));

/** The counts per bucket of a histogram, over all its series. */
function readBuckets(snapshot: Snapshot, name: MetricName): readonly number[] {
  const totals = Array<number>(METRICS[name].buckets.length + 1).fill(0);
  for (const [, , counts = []] of snapshot[name] ?? [])
    counts.forEach((count, at) => {
      totals[at] = (totals[at] ?? 0) + count;
    });
  return totals;
}

/** `rule="a",code="200"`, as in the Prometheus text format. */
function parseLabels(text: string): Readonly<Record<string, string>> {
  return Object.fromEntries(
    [...text.matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g)].map(([, name = '', value = '']) => [
      name,
      value.replace(/\\(.)/g, (_, char: string) => (char === 'n' ? '\n' : char)),
    ]),
  );
}

/** As `histogram_quantile` of Prometheus: interpolates within the bucket. Undefined without values. */
export function computeQuantile(
  counts: readonly number[],
  bounds: readonly number[],
  quantile: number,
): number | undefined {
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (total <= 0) return undefined;
  const rank = quantile * total;
  let below = 0;
  for (const [at, count] of counts.entries()) {
    const upper = bounds[at];
    if (upper === undefined) break;
    if (below + count >= rank && count > 0) {
      const lower = at === 0 ? 0 : (bounds[at - 1] ?? 0);
      return lower + ((upper - lower) * (rank - below)) / count;
    }
    below += count;
  }
  return bounds.at(-1);
}

/** What happened between two samples. */
export interface Interval {
  /** End, in seconds since 1970. */
  readonly time: number;
  readonly seconds: number;
  /** Requests by decision. */
  readonly decisions: Counts;
  /** Refused and failed requests by reason. */
  readonly refusals: Counts;
  /** Requests per latency bucket. */
  readonly latency: readonly number[];
  /** Access tokens by grant type; `refresh` for refreshed grants. */
  readonly tokens: Counts;
  readonly revocations: number;
}

type Totals = Omit<Interval, 'seconds'>;

const LATENCY = 'gatehouse_http_request_duration_seconds';
const LATENCY_BOUNDS = METRICS[LATENCY].buckets;

export const HISTORY_SECONDS = 3_600;
const MAX_INTERVALS = HISTORY_SECONDS / 4;

/** The last hour of the metrics of all processes, in memory. */
export class History {
  readonly #intervals: Interval[] = [];
  #last: Totals | undefined;
  /** The last sample. */
  latest: Snapshot = {};

  /** Time of the last sample. */
  get sampledAt(): number | undefined {
    return this.#last?.time;
  }

  add(snapshot: Snapshot, time: number): void {
    const totals = readTotals(snapshot, time);
    const last = this.#last;
    this.#last = totals;
    this.latest = snapshot;
    // A clock that was set back begins a new interval.
    if (last === undefined || time <= last.time) return;
    this.#intervals.push(subtract(totals, last));
    while (this.#intervals.length > MAX_INTERVALS || (this.#intervals[0]?.time ?? time) < time - HISTORY_SECONDS)
      this.#intervals.shift();
  }

  /** The last `seconds`, in `count` parts of equal length; undefined where nothing is known. */
  parts(now: number, seconds: number, count: number): readonly (Interval | undefined)[] {
    const start = now - seconds;
    const length = seconds / count;
    const ends = Map.groupBy(this.#intervals, ({ time }) => Math.ceil((time - start) / length) - 1);
    return Array.from({ length: count }, (_, at) => {
      const middle = start + (at + 0.5) * length;
      // An interval may be longer than a part.
      return (
        combine(ends.get(at) ?? []) ??
        this.#intervals.find((interval) => interval.time >= middle && interval.time - interval.seconds < middle)
      );
    });
  }

  /** Everything of the last `seconds`. */
  total(now: number, seconds: number): Interval | undefined {
    return combine(this.#intervals.filter(({ time }) => time > now - seconds));
  }
}

export const quantileOf = ({ latency }: Interval, quantile: number): number | undefined =>
  computeQuantile(latency, LATENCY_BOUNDS, quantile);

function readTotals(snapshot: Snapshot, time: number): Totals {
  const isRefusal = /decision="(?:refused|failed)"/;
  const refused: Snapshot = {
    gatehouse_auth_decisions_total: (snapshot.gatehouse_auth_decisions_total ?? []).filter(([labels]) =>
      isRefusal.test(labels),
    ),
  };
  return {
    time,
    decisions: sumBy(snapshot, 'gatehouse_auth_decisions_total', 'decision'),
    refusals: sumBy(refused, 'gatehouse_auth_decisions_total', 'reason'),
    latency: readBuckets(snapshot, LATENCY),
    tokens: sumBy(snapshot, 'gatehouse_tokens_issued_total', 'grant'),
    revocations: readTotal(snapshot, 'gatehouse_revocations_total') ?? 0,
  };
}

/** Counters of a process that was killed may be missing: no difference is negative. */
const difference = (next: number, last: number): number => Math.max(0, next - last);

const subtractCounts = (next: Counts, last: Counts): Counts =>
  new Map(
    next
      .entries()
      .map(([name, count]) => [name, difference(count, last.get(name) ?? 0)] as const)
      .filter(([, count]) => count > 0),
  );

const subtract = (next: Totals, last: Totals): Interval => ({
  time: next.time,
  seconds: next.time - last.time,
  decisions: subtractCounts(next.decisions, last.decisions),
  refusals: subtractCounts(next.refusals, last.refusals),
  latency: next.latency.map((count, at) => difference(count, last.latency[at] ?? 0)),
  tokens: subtractCounts(next.tokens, last.tokens),
  revocations: difference(next.revocations, last.revocations),
});

function combine(intervals: readonly Interval[]): Interval | undefined {
  const last = intervals.at(-1);
  if (last === undefined) return undefined;
  return {
    time: last.time,
    seconds: intervals.reduce((sum, { seconds }) => sum + seconds, 0),
    decisions: addCounts(intervals.flatMap(({ decisions }) => [...decisions])),
    refusals: addCounts(intervals.flatMap(({ refusals }) => [...refusals])),
    latency: last.latency.map((_, at) => intervals.reduce((sum, { latency }) => sum + (latency[at] ?? 0), 0)),
    tokens: addCounts(intervals.flatMap(({ tokens }) => [...tokens])),
    revocations: intervals.reduce((sum, { revocations }) => sum + revocations, 0),
  };
}
