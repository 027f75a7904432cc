import { parseArgs } from 'node:util';
import { type Sample, soak } from '../test/support/soak.ts';

/**
 * Row O12, at length: `npm run soak`, or `npm run soak -- --minutes 120`. Prints a table and, as the last line, the
 * same as JSON. Exit code 1 when something grew or failed.
 */
const { values } = parseArgs({ options: { minutes: { type: 'string', default: '20' } } });
const seconds = Number(values.minutes) * 60;
const found = await soak({
  seconds,
  warmUpSeconds: Math.min(300, seconds / 4),
  everySeconds: Math.max(5, seconds / 120),
  onSample: ({ second, rssMiB, descriptors, lagSeconds }) =>
    console.log(
      `${String(second).padStart(6)} s  ${rssMiB.toFixed(1).padStart(7)} MiB  ${descriptors} descriptors  ${milliseconds(lagSeconds)} lag`,
    ),
});
const { samples, failures, exitCode, descriptorSpread } = found;
const ok = failures.length === 0 && exitCode === 0 && descriptorSpread < 50;

const ends = (of: (sample: Sample) => string): string =>
  [samples.at(0), samples.at(-1)].map((sample) => (sample === undefined ? '?' : of(sample))).join(' to ');
const rows: readonly (readonly [string, string])[] = [
  ['answers', `${found.answered}, ${failures.length} failures`],
  ['memory', `${ends(({ rssMiB }) => rssMiB.toFixed(1))} MiB, slope ${found.rssSlope.toFixed(1)} MiB/h`],
  ['descriptors', `${ends(({ descriptors }) => String(descriptors))}, within ${descriptorSpread}`],
  [
    'event-loop lag',
    `p50 ${milliseconds(found.lagP50)}, p99 ${milliseconds(found.lagP99)} (the longest before each look)`,
  ],
  ['exit code', String(exitCode)],
];
console.log(`\nafter ${values.minutes} min, ${samples.length} looks:`);
for (const [name, value] of rows) console.log(`  ${name.padEnd(15)} ${value}`);
for (const failure of failures.slice(0, 20)) console.log(`  ${failure}`);
console.log(JSON.stringify({ ok, ...found, failures: failures.slice(0, 20), failed: failures.length }));
process.exitCode = ok ? 0 : 1;

function milliseconds(value: number): string {
  return `${(value * 1_000).toFixed(1)} ms`;
}
