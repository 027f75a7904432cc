import type { Sample, Snapshot } from './metric-registry.ts';
import { familyOf, METRIC_NAMES, type MetricName } from './metric-table.ts';

export const EXPOSITION_TYPE = 'text/plain; version=0.0.4; charset=utf-8';

/** The figures of several processes as those of one. */
export function joinSnapshots(snapshots: readonly Snapshot[]): Snapshot {
  const joined: { -readonly [N in MetricName]?: readonly Sample[] } = {};
  for (const name of METRIC_NAMES) {
    const { type, join } = familyOf(name);
    const series = new Map<string, Sample>();
    for (const snapshot of snapshots)
      for (const sample of snapshot[name] ?? []) {
        const before = series.get(sample[0]);
        series.set(
          sample[0],
          before === undefined ? sample : joinSamples(type === 'gauge' ? join : 'sum', before, sample),
        );
      }
    if (series.size > 0) joined[name] = [...series.values()];
  }
  return joined;
}

/** What stays of a process that has ended: what it counted, and not what it held. */
export function countsOf(snapshot: Snapshot): Snapshot {
  return Object.fromEntries(
    METRIC_NAMES.filter((name) => familyOf(name).type !== 'gauge' && snapshot[name] !== undefined).map(
      (name) => [name, snapshot[name]],
    ),
  );
}

function joinSamples(how: 'sum' | 'max' | 'min', a: Sample, b: Sample): Sample {
  const [labels, first, counts] = a;
  const [, second, more] = b;
  if (how !== 'sum') return [labels, Math[how](first, second)];
  if (counts === undefined) return [labels, first + second];
  return [labels, first + second, counts.map((count, at) => count + (more?.[at] ?? 0))];
}

/** The Prometheus text format, version 0.0.4. */
export function exposition(snapshot: Snapshot): string {
  const lines: string[] = [];
  for (const name of METRIC_NAMES) {
    const samples = snapshot[name];
    if (samples === undefined) continue;
    const { type, help, buckets } = familyOf(name);
    lines.push(`# HELP ${name} ${help.replaceAll('\\', String.raw`\\`)}`, `# TYPE ${name} ${type}`);
    for (const sample of samples) {
      const [labels, value, counts] = sample;
      if (counts === undefined) lines.push(`${name}${braces(labels)} ${value}`);
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
  const before = labels === '' ? '' : `${labels},`;
  let total = 0;
  counts.forEach((count, at) => {
    total += count;
    lines.push(`${name}_bucket{${before}le="${at < bounds.length ? bounds[at] : '+Inf'}"} ${total}`);
  });
  lines.push(`${name}_sum${braces(labels)} ${sum}`, `${name}_count${braces(labels)} ${total}`);
}

const braces = (labels: string): string => (labels === '' ? '' : `{${labels}}`);
