import type { Sample } from './load-run.ts';
import { type Figure, median } from './report.ts';
import { isQuiet } from './rounds.ts';

/** The samples of one candidate. */
export interface Row {
  readonly group: string;
  readonly name: string;
  readonly samples: readonly Sample[];
}

/** The result file of `npm run bench` in bench/results. */
export interface BenchResult {
  readonly date: string;
  readonly commit: string;
  readonly machine: {
    readonly cpu: string;
    readonly cores: number;
    readonly arch: string;
    readonly memoryGiB: number;
    readonly node: string;
    readonly loadAverage: { readonly before: string; readonly after: string };
  };
  readonly settings: {
    readonly quick: boolean;
    readonly seconds: number;
    readonly rounds: number;
  } & Readonly<Record<string, unknown>>;
  readonly rows: readonly Row[];
  readonly ratios: readonly (Figure & { readonly met: boolean | undefined })[];
  readonly skipped: readonly string[];
}

/** Below this utilization, the server did not limit the requests per second. */
const FULL = 0.9;

const HEADER = [
  'group',
  'candidate',
  'CPU µs per request (from – to)',
  'requests/s',
  'p50 ms',
  'p99 ms',
  'RSS MB',
  'rounds disturbed',
];

/** Absolute figures, comparable only within one run. */
export function rowTable(rows: readonly Row[]): string {
  const lines = rows.map(({ group, name, samples }) => {
    const medianOf = (get: (sample: Sample) => number): number => median(samples.map(get));
    const cpu = samples.map(({ cpuMicros }) => cpuMicros);
    const perSecond = Math.round(medianOf((sample) => sample.perSecond)).toLocaleString('en');
    return [
      group,
      name,
      `${median(cpu).toFixed(1)} (${Math.min(...cpu).toFixed(1)} – ${Math.max(...cpu).toFixed(1)})`,
      medianOf(({ busy }) => busy) < FULL ? `≥ ${perSecond}` : perSecond,
      medianOf(({ p50 }) => p50).toFixed(1),
      medianOf(({ p99 }) => p99).toFixed(1),
      medianOf((sample) => sample.residentMegabytes).toFixed(0),
      `${samples.filter((sample) => !isQuiet(sample)).length} of ${samples.length}`,
    ];
  });
  return [HEADER, HEADER.map(() => '---'), ...lines].map((cells) => `| ${cells.join(' | ')} |`).join('\n');
}
