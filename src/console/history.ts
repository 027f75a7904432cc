import type { Snapshot } from '../observability/metric-registry.ts';
import { METRICS, type MetricName } from '../observability/metric-table.ts';

type Labels = Readonly<Record<string, string>>;

interface LabelledSample {
  readonly labels: Labels;
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

/** Sums by one label. */
export function sumBy(
  snapshot: Snapshot,
  name: MetricName,
  label: string,
  isCounted: (labels: Labels) => boolean = () => true,
): Counts {
  const sums = new Map<string, number>();
  for (const { labels, value } of readSamples(snapshot, name)) {
    const key = labels[label] ?? '';
    if (isCounted(labels)) sums.set(key, (sums.get(key) ?? 0) + value);
  }
  return sums;
}

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
function parseLabels(text: string): Labels {
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

/** What happened since the start of a process, or between two samples. */
type Totals = ReturnType<typeof readTotals>;
export type Interval = Totals & { readonly seconds: number };
type Sample = Totals & { readonly time: number };

const LATENCY = 'gatehouse_http_request_duration_seconds';
const HISTORY_SECONDS = 60;

/** The last minute of the metrics of all processes, in memory. */
export class History {
  /** Oldest first. The first one is the last before the minute, if there is one. */
  #samples: readonly Sample[] = [];
  /** The last sample. */
  latest: Snapshot = {};

  /** Time of the last sample. */
  get sampledAt(): number | undefined {
    return this.#samples.at(-1)?.time;
  }

  add(snapshot: Snapshot, time: number): void {
    this.latest = snapshot;
    // A clock that was set back begins a new history.
    const earlier = this.#samples.filter((sample) => sample.time < time);
    const first = earlier.findLastIndex((sample) => sample.time <= time - HISTORY_SECONDS);
    this.#samples = [...earlier.slice(Math.max(0, first)), { time, ...readTotals(snapshot) }];
  }

  /** Returns undefined until there are two samples. */
  getLastMinute(): Interval | undefined {
    const [first] = this.#samples;
    const last = this.#samples.at(-1);
    if (first === undefined || last === undefined || first === last) return undefined;
    return {
      seconds: last.time - first.time,
      decisions: subtractCounts(last.decisions, first.decisions),
      refusals: subtractCounts(last.refusals, first.refusals),
      latency: last.latency.map((count, at) => difference(count, first.latency[at] ?? 0)),
      tokens: subtractCounts(last.tokens, first.tokens),
      revocations: difference(last.revocations, first.revocations),
    };
  }
}

export const quantileOf = ({ latency }: Interval, quantile: number): number | undefined =>
  computeQuantile(latency, METRICS[LATENCY].buckets, quantile);

const readTotals = (snapshot: Snapshot) => ({
  decisions: sumBy(snapshot, 'gatehouse_auth_decisions_total', 'decision'),
  /** Refused and failed requests. */
  refusals: sumBy(snapshot, 'gatehouse_auth_decisions_total', 'reason', ({ decision }) =>
    ['refused', 'failed'].includes(decision ?? ''),
  ),
  latency: readBuckets(snapshot, LATENCY),
  /** By grant type; `refresh` for refreshed grants. */
  tokens: sumBy(snapshot, 'gatehouse_tokens_issued_total', 'grant'),
  revocations: readTotal(snapshot, 'gatehouse_revocations_total') ?? 0,
});

/** Counters of a process that was killed may be missing: no difference is negative. */
const difference = (next: number, last: number): number => Math.max(0, next - last);

const subtractCounts = (next: Counts, last: Counts): Counts =>
  new Map(
    next
      .entries()
      .map(([name, count]) => [name, difference(count, last.get(name) ?? 0)] as const)
      .filter(([, count]) => count > 0),
  );
