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

/** Sums by one label. */
export function sumBy(snapshot: Snapshot, name: MetricName, label: string): ReadonlyMap<string, number> {
  const sums = new Map<string, number>();
  for (const { labels, value } of readSamples(snapshot, name)) {
    const key = labels[label] ?? '';
    sums.set(key, (sums.get(key) ?? 0) + value);
  }
  return sums;
}

/** The counts per bucket of a histogram, over all its series. */
export function readBuckets(snapshot: Snapshot, name: MetricName): readonly number[] {
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
