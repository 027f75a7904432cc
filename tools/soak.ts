import { resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { type HeapSample, type Sample, soak } from './soak/soak.ts';

/**
 * The long form of O12: `npm run soak`, or `npm run soak -- --minutes 120`; `--entry dist/main.js` tests the built program.
 * Prints a table and, as the last line, the same as JSON. The exit code is 1 if something grew or failed.
 */
const { values } = parseArgs({
  options: { minutes: { type: 'string', default: '20' }, entry: { type: 'string' } },
});
/** V8's young generation may grow if the machine has more CPU in the second half; a leak of 1 KB per request is larger. */
const MAX_ANONYMOUS_GROWTH_MIB = 32;
/** Share of 503 responses; zero on an idle machine. */
const MAX_REJECTED = 0.01;
/** After a full garbage collection, the heap hardly varies. */
const MAX_HELD_GROWTH_MIB = 4;
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
  onHeapSample: (sample) => console.log(`${at(sample.second)}  held: ${formatHeld(sample)}`),
});
const { samples, heapSamples, failures, exitCode, descriptorSpread, anonymousGrowth, heldGrowth } = found;
const ok =
  failures.length === 0 &&
  found.rejected <= found.completed * MAX_REJECTED &&
  exitCode === 0 &&
  descriptorSpread < 50 &&
  anonymousGrowth <= MAX_ANONYMOUS_GROWTH_MIB &&
  heldGrowth <= MAX_HELD_GROWTH_MIB;

const formatRange = (format: (sample: Sample) => string): string =>
  [samples.at(0), samples.at(-1)].map((sample) => (sample === undefined ? '?' : format(sample))).join(' to ');
const rows: readonly (readonly [string, string])[] = [
  ['responses', `${found.completed}, ${found.rejected} of them 503, ${failures.length} failures`],
  [
    'anonymous memory',
    `${formatRange(({ anonymousMiB }) => anonymousMiB.toFixed(1))} MiB, slope ${found.anonymousSlope.toFixed(1)} MiB/h, ` +
      `peak of the second half above that of the first ${anonymousGrowth.toFixed(1)} MiB (at most ${MAX_ANONYMOUS_GROWTH_MIB})`,
  ],
  ['resident memory', `${formatRange(({ rssMiB }) => rssMiB.toFixed(1))} MiB`],
  ...heapSamples.map(
    (sample, index) =>
      [['held, early', 'held, middle', 'held, end'][index] ?? '', formatHeld(sample)] as const,
  ),
  ['held, growth', `${heldGrowth.toFixed(1)} MiB since the middle (at most ${MAX_HELD_GROWTH_MIB})`],
  ['descriptors', `${formatRange(({ descriptors }) => String(descriptors))}, within ${descriptorSpread}`],
  [
    'event-loop lag',
    `p50 ${milliseconds(found.lagP50)}, p99 ${milliseconds(found.lagP99)} (longest delay before each sample)`,
  ],
  ['exit code', String(exitCode)],
];
console.log(`\nafter ${values.minutes} min, ${samples.length} samples:`);
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

/** Memory after a full garbage collection. */
function formatHeld({ heapMiB, arrayBuffersMiB, externalMiB, anonymousMiB }: HeapSample): string {
  return `heap ${heapMiB} MiB, outside of it ${externalMiB} MiB (buffers ${arrayBuffersMiB}), anonymous ${anonymousMiB} MiB`;
}
