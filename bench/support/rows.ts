import { median } from './report.ts';
import { isQuiet } from './rounds.ts';
import type { Sample } from './wrk.ts';

/** What one candidate showed in all rounds. */
export interface Row {
  readonly group: string;
  readonly name: string;
  readonly samples: readonly Sample[];
}

/** Below this the server was not what limited requests per second. */
const FULL = 0.9;

const HEAD = [
  'group',
  'candidate',
  'CPU µs per request (from – to)',
  'requests/s',
  'p50 ms',
  'p99 ms',
  'RSS MB',
  'rounds disturbed',
];

/** Absolute figures: to be compared within one run only. */
export function rowTable(rows: readonly Row[]): string {
  const lines = rows.map(({ group, name, samples }) => {
    const of = (get: (sample: Sample) => number): number => median(samples.map(get));
    const cpu = samples.map(({ cpuMicros }) => cpuMicros);
    const perSecond = Math.round(of((sample) => sample.perSecond)).toLocaleString('en');
    return [
      group,
      name,
      `${median(cpu).toFixed(1)} (${Math.min(...cpu).toFixed(1)} – ${Math.max(...cpu).toFixed(1)})`,
      of(({ busy }) => busy) < FULL ? `≥ ${perSecond}` : perSecond,
      of(({ p50 }) => p50).toFixed(1),
      of(({ p99 }) => p99).toFixed(1),
      of((sample) => sample.residentMegabytes).toFixed(0),
      `${samples.filter((sample) => !isQuiet(sample)).length} of ${samples.length}`,
    ];
  });
  return [HEAD, HEAD.map(() => '---'), ...lines].map((cells) => `| ${cells.join(' | ')} |`).join('\n');
}
