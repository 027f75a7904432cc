import { familyOf, METRIC_NAMES, type MetricName } from './metric-table.ts';

/** One counter. Whoever counts holds it and adds to it: no look-up, no object, no text on the way. */
export interface Counter {
  value: number;
}

export interface Histogram {
  /** Not cumulative; the last one is for all beyond the largest bound. */
  readonly counts: Float64Array;
  readonly bounds: readonly number[];
  sum: number;
}

export type Sample =
  | readonly [labels: string, value: number]
  | readonly [labels: string, sum: number, counts: readonly number[]];
/** The figures of one process at one moment, fit to be sent to another. */
export type Snapshot = { readonly [N in MetricName]?: readonly Sample[] };

/** Sets gauges when somebody asks for them. */
export type Collector = (
  set: (name: MetricName, value: number | undefined, ...labels: readonly string[]) => void,
) => void | Promise<void>;

export interface Registry {
  /** The same counter for the same labels. */
  counter(name: MetricName, ...labels: readonly string[]): Counter;
  histogram(name: MetricName, ...labels: readonly string[]): Histogram;
  /** Returns how to stop asking it. */
  collect(collector: Collector): () => void;
  snapshot(): Promise<Snapshot>;
}

/** Beyond this many series a metric has one more, for all the rest. */
const MOST_SERIES = 2_000;
const REST = 'other';

export function observe(histogram: Histogram, value: number): void {
  const { bounds, counts } = histogram;
  let at = 0;
  while (at < bounds.length && value > (bounds[at] as number)) at += 1;
  counts[at] = (counts[at] as number) + 1;
  histogram.sum += value;
}

export function createRegistry(): Registry {
  const counters = new Map<MetricName, Map<string, Counter>>();
  const histograms = new Map<MetricName, Map<string, Histogram>>();
  const collectors = new Set<Collector>();

  const seriesOf = <T>(
    families: Map<MetricName, Map<string, T>>,
    name: MetricName,
    labels: readonly string[],
    make: () => T,
  ): T => {
    let series = families.get(name);
    if (series === undefined) families.set(name, (series = new Map<string, T>()));
    let text = labelText(name, labels);
    if (!series.has(text) && series.size >= MOST_SERIES)
      text = labelText(
        name,
        labels.map(() => REST),
      );
    let one = series.get(text);
    if (one === undefined) series.set(text, (one = make()));
    return one;
  };

  const registry: Registry = {
    counter: (name, ...labels) => seriesOf(counters, name, labels, () => ({ value: 0 })),
    histogram: (name, ...labels) => {
      const { buckets } = familyOf(name);
      return seriesOf(histograms, name, labels, () => ({
        bounds: buckets,
        counts: new Float64Array(buckets.length + 1),
        sum: 0,
      }));
    },
    collect(collector) {
      collectors.add(collector);
      return () => void collectors.delete(collector);
    },
    async snapshot() {
      const found: { -readonly [N in MetricName]?: Sample[] } = {};
      const put = (name: MetricName, sample: Sample): void => void (found[name] ??= []).push(sample);
      for (const [name, series] of counters)
        for (const [labels, { value }] of series) put(name, [labels, value]);
      for (const [name, series] of histograms)
        for (const [labels, { sum, counts }] of series) put(name, [labels, sum, [...counts]]);
      await Promise.all(
        Array.from(collectors, async (collector) =>
          collector((name, value, ...labels) => {
            if (value !== undefined && Number.isFinite(value)) put(name, [labelText(name, labels), value]);
          }),
        ),
      );
      return found;
    },
  };
  // What has no labels is there from the start, at zero: nobody can tell a missing series from a quiet one.
  for (const name of METRIC_NAMES) {
    const { type, labels } = familyOf(name);
    if (labels.length > 0) continue;
    if (type === 'counter') registry.counter(name);
    if (type === 'histogram') registry.histogram(name);
  }
  return registry;
}

/** As it stands in the exposition: `rule="a",code="200"`. */
function labelText(name: MetricName, values: readonly string[]): string {
  const { labels } = familyOf(name);
  if (labels.length !== values.length) throw new Error(`${name} has the labels ${labels.join(', ')}`);
  return labels.map((label, at) => `${label}="${escapeLabel(values[at] ?? '')}"`).join(',');
}

const escapeLabel = (text: string): string =>
  text.replace(/[\\"\n]/g, (char) => (char === '\n' ? String.raw`\n` : `\\${char}`));
