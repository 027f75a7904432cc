import type { Sample, Snapshot } from './metric-registry.ts';
import { METRIC_NAMES, METRICS, type MetricName } from './metric-table.ts';

export const EXPOSITION_CONTENT_TYPE = 'text/plain; version=0.0.4; charset=utf-8';

/** Combines the metrics of several processes. */
export function mergeSnapshots(snapshots: readonly Snapshot[]): Snapshot {
  const merged: { -readonly [N in MetricName]?: readonly Sample[] } = {};
  for (const name of METRIC_NAMES) {
    const { type, aggregation } = METRICS[name];
    const series = new Map<string, Sample>();
    for (const snapshot of snapshots)
      for (const sample of snapshot[name] ?? []) {
        const previous = series.get(sample[0]);
        series.set(
          sample[0],
          previous === undefined ? sample : mergeSamples(type === 'gauge' ? aggregation : 'sum', previous, sample),
        );
      }
    if (series.size > 0) merged[name] = [...series.values()];
  }
  return merged;
}

/** Counters and histograms of a process that has exited; its gauges no longer apply. */
export function dropGauges(snapshot: Snapshot): Snapshot {
  return Object.fromEntries(
    METRIC_NAMES.filter((name) => METRICS[name].type !== 'gauge' && snapshot[name] !== undefined).map((name) => [
      name,
      snapshot[name],
    ]),
  );
}

function mergeSamples(aggregation: 'sum' | 'max' | 'min', a: Sample, b: Sample): Sample {
  const [labels, first, counts] = a;
  const [, second, more] = b;
  if (aggregation !== 'sum') return [labels, Math[aggregation](first, second)];
  if (counts === undefined) return [labels, first + second];
  return [labels, first + second, counts.map((count, at) => count + (more?.[at] ?? 0))];
}

/** The Prometheus text format, version 0.0.4. */
export function formatExposition(snapshot: Snapshot): string {
  const lines: string[] = [];
  for (const name of METRIC_NAMES) {
    const samples = snapshot[name];
    if (samples === undefined) continue;
    const { type, help, buckets } = METRICS[name];
    lines.push(`# HELP ${name} ${help.replaceAll('\\', String.raw`\\`)}`, `# TYPE ${name} ${type}`);
    for (const sample of samples) {
      const [labels, value, counts] = sample;
      if (counts === undefined) lines.push(`${name}${formatLabelSet(labels)} ${value}`);
      else pushHistogram(lines, name, labels, value, counts, buckets);
    }
  }
  return `${lines.join('\n')}\n`;
}

function pushHistogram(
  lines: string[],
  name: string,
  labels: string,
  sum: number,
  counts: readonly number[],
  bounds: readonly number[],
): void {
  const prefix = labels === '' ? '' : `${labels},`;
  let total = 0;
  counts.forEach((count, at) => {
    total += count;
    lines.push(`${name}_bucket{${prefix}le="${at < bounds.length ? bounds[at] : '+Inf'}"} ${total}`);
  });
  lines.push(`${name}_sum${formatLabelSet(labels)} ${sum}`, `${name}_count${formatLabelSet(labels)} ${total}`);
}

const formatLabelSet = (labels: string): string => (labels === '' ? '' : `{${labels}}`);
