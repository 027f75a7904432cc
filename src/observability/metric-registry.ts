import { METRIC_NAMES, METRICS, type MetricName } from './metric-table.ts';

/** Callers keep the counter and increment it: no lookup or allocation per request. */
export interface Counter {
  value: number;
}

export interface Histogram {
  /** Not cumulative; the last one counts values above the largest bound. */
  readonly counts: Float64Array;
  readonly bounds: readonly number[];
  sum: number;
}

export type Sample =
  | readonly [labels: string, value: number]
  | readonly [labels: string, sum: number, counts: readonly number[]];
/** The metrics of one process, serializable for IPC. */
export type Snapshot = { readonly [N in MetricName]?: readonly Sample[] };

/** Sets gauges for a snapshot. */
type Collector = (
  set: (name: MetricName, value: number | undefined, ...labels: readonly string[]) => void,
) => void | Promise<void>;

export type Registry = ReturnType<typeof createRegistry>;

/** Beyond this limit, further label values share one series. */
const MAX_SERIES = 2_000;
const OVERFLOW_LABEL = 'other';

export function observe(histogram: Histogram, value: number): void {
  const { bounds, counts } = histogram;
  let at = 0;
  while (at < bounds.length && value > (bounds[at] as number)) at += 1;
  counts[at] = (counts[at] as number) + 1;
  histogram.sum += value;
}

export function createRegistry() {
  const counters = new Map<MetricName, Map<string, Counter>>();
  const histograms = new Map<MetricName, Map<string, Histogram>>();
  const collectors = new Set<Collector>();

  const getSeries = <T>(
    families: Map<MetricName, Map<string, T>>,
    name: MetricName,
    labels: readonly string[],
    create: () => T,
  ): T => {
    let series = families.get(name);
    if (series === undefined) families.set(name, (series = new Map<string, T>()));
    let text = formatLabels(name, labels);
    if (!series.has(text) && series.size >= MAX_SERIES)
      text = formatLabels(
        name,
        labels.map(() => OVERFLOW_LABEL),
      );
    let existing = series.get(text);
    if (existing === undefined) series.set(text, (existing = create()));
    return existing;
  };

  const registry = {
    /** The same counter for the same labels. */
    counter: (name: MetricName, ...labels: readonly string[]): Counter =>
      getSeries(counters, name, labels, () => ({ value: 0 })),
    histogram: (name: MetricName, ...labels: readonly string[]): Histogram => {
      const { buckets } = METRICS[name];
      return getSeries(histograms, name, labels, () => ({
        bounds: buckets,
        counts: new Float64Array(buckets.length + 1),
        sum: 0,
      }));
    },
    /** Returns a function that removes it. */
    addCollector(collector: Collector): () => void {
      collectors.add(collector);
      return () => void collectors.delete(collector);
    },
    async snapshot(): Promise<Snapshot> {
      const found: { -readonly [N in MetricName]?: Sample[] } = {};
      const addSample = (name: MetricName, sample: Sample): void => void (found[name] ??= []).push(sample);
      for (const [name, series] of counters) for (const [labels, { value }] of series) addSample(name, [labels, value]);
      for (const [name, series] of histograms)
        for (const [labels, { sum, counts }] of series) addSample(name, [labels, sum, [...counts]]);
      await Promise.all(
        Array.from(collectors, async (collector) =>
          collector((name, value, ...labels) => {
            if (value !== undefined && Number.isFinite(value)) addSample(name, [formatLabels(name, labels), value]);
          }),
        ),
      );
      return found;
    },
  };
  // Metrics without labels exist from the start, at zero: a missing series could not be distinguished from an idle one.
  for (const name of METRIC_NAMES) {
    const { type, labels } = METRICS[name];
    if (labels.length > 0) continue;
    if (type === 'counter') registry.counter(name);
    if (type === 'histogram') registry.histogram(name);
  }
  return registry;
}

/** `rule="a",code="200"`. */
function formatLabels(name: MetricName, values: readonly string[]): string {
  const { labels } = METRICS[name];
  if (labels.length !== values.length) throw new Error(`${name} has the labels ${labels.join(', ')}`);
  return labels.map((label, at) => `${label}="${escapeLabel(values[at] ?? '')}"`).join(',');
}

const escapeLabel = (text: string): string =>
  text.replace(/[\\"\n]/g, (char) => (char === '\n' ? String.raw`\n` : `\\${char}`));

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
