import { resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { type HeapSample, type Sample, soak } from './soak/soak.ts';

/**
 * Row O12, at length: `npm run soak`, or `npm run soak -- --minutes 120`; `--entry dist/main.js` for the built program.
 * Prints a table and, as the last line, the same as JSON. Exit code 1 when something grew or failed.
 */
const { values } = parseArgs({
  options: { minutes: { type: 'string', default: '20' }, entry: { type: 'string' } },
});
/** A machine that has more time in the second half lets the young generation grow; a leak of one kilobyte a request is more. */
const MOST_ANONYMOUS_GROWTH_MIB = 32;
/** On a machine that has time for it nobody is. */
const MOST_TURNED_AWAY = 0.01;
/** What is held after a full collection hardly moves at all. */
const MOST_HELD_GROWTH_MIB = 4;
const seconds = Number(values.minutes) * 60;
const found = await soak({
  seconds,
  warmUpSeconds: Math.min(300, seconds / 4),
  everySeconds: Math.max(5, seconds / 120),
  ...(values.entry !== undefined && { entry: resolve(values.entry) }),
  onSample: ({ second, anonymousMiB, rssMiB, descriptors, lagSeconds }) =>
    console.log(
      `${at(second)}  ${mebibytes(anonymousMiB)} anonymous  ${mebibytes(rssMiB)} resident  ${descriptors} descriptors  ${milliseconds(lagSeconds)} lag`,
    ),
  onHeapSample: (weighing) => console.log(`${at(weighing.second)}  held: ${formatHeld(weighing)}`),
});
const { samples, heapSamples, failures, exitCode, descriptorSpread, anonymousGrowth, heldGrowth } = found;
const ok =
  failures.length === 0 &&
  found.rejected <= found.completed * MOST_TURNED_AWAY &&
  exitCode === 0 &&
  descriptorSpread < 50 &&
  anonymousGrowth <= MOST_ANONYMOUS_GROWTH_MIB &&
  heldGrowth <= MOST_HELD_GROWTH_MIB;

const ends = (of: (sample: Sample) => string): string =>
  [samples.at(0), samples.at(-1)].map((sample) => (sample === undefined ? '?' : of(sample))).join(' to ');
const rows: readonly (readonly [string, string])[] = [
  ['answers', `${found.completed}, ${found.rejected} of them 503, ${failures.length} failures`],
  [
    'anonymous memory',
    `${ends(({ anonymousMiB }) => anonymousMiB.toFixed(1))} MiB, slope ${found.anonymousSlope.toFixed(1)} MiB/h, ` +
      `height of the second half over that of the first ${anonymousGrowth.toFixed(1)} MiB (at most ${MOST_ANONYMOUS_GROWTH_MIB})`,
  ],
  ['resident memory', `${ends(({ rssMiB }) => rssMiB.toFixed(1))} MiB`],
  ...heapSamples.map(
    (weighing, place) =>
      [['held, early', 'held, middle', 'held, end'][place] ?? '', formatHeld(weighing)] as const,
  ),
  ['held, growth', `${heldGrowth.toFixed(1)} MiB since the middle (at most ${MOST_HELD_GROWTH_MIB})`],
  ['descriptors', `${ends(({ descriptors }) => String(descriptors))}, within ${descriptorSpread}`],
  [
    'event-loop lag',
    `p50 ${milliseconds(found.lagP50)}, p99 ${milliseconds(found.lagP99)} (the longest before each look)`,
  ],
  ['exit code', String(exitCode)],
];
console.log(`\nafter ${values.minutes} min, ${samples.length} looks:`);
for (const [name, value] of rows) console.log(`  ${name.padEnd(16)} ${value}`);
for (const failure of failures.slice(0, 20)) console.log(`  ${failure}`);
console.log(JSON.stringify({ ok, ...found, failures: failures.slice(0, 20), failed: failures.length }));
process.exitCode = ok ? 0 : 1;

function milliseconds(value: number): string {
  return `${(value * 1_000).toFixed(1)} ms`;
}

function mebibytes(value: number): string {
  return `${value.toFixed(1).padStart(6)} MiB`;
}

function at(second: number): string {
  return `${String(second).padStart(6)} s`;
}

/** After all garbage was collected. */
function formatHeld({ heapMiB, arrayBuffersMiB, externalMiB, anonymousMiB }: HeapSample): string {
  return `heap ${heapMiB} MiB, outside of it ${externalMiB} MiB (buffers ${arrayBuffersMiB}), anonymous ${anonymousMiB} MiB`;
}
