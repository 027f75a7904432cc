import { resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { recordFigures } from '../test/support/figures.ts';
import { http2Load } from './soak/http2-load.ts';
import { connectionsLoad, mixedLoad } from './soak/mixed-load.ts';
import { type HeapSample, type Sample, soak } from './soak/soak.ts';

/**
 * The long form of O12: `npm run soak`, or `npm run soak -- --minutes 120`; `--entry dist/main.js` tests the built program.
 * `npm run soak:http2` has clients of all kinds over HTTP/2 instead, including hostile ones; `--load connections` keeps 1,000
 * connections open.
 * Prints a table and, as the last line, the same as JSON. The exit code is 1 if something grew or failed.
 */
const { values } = parseArgs({
  options: {
    minutes: { type: 'string', default: '20' },
    entry: { type: 'string' },
    load: { type: 'string', default: 'mixed' },
  },
});
/** V8's young generation may grow if the machine has more CPU in the second half; a leak of 1 KB per request is larger. */
const MAX_ANONYMOUS_GROWTH_MIB = 32;
/** Share of 503 responses; zero on an idle machine. */
const MAX_REJECTED = 0.01;
/** Share of samples that may be missed. */
const MAX_MISSED = 0.1;
/** After a full garbage collection, the heap hardly varies. */
const MAX_HELD_GROWTH_MIB = 4;
/** Of the memory after a full garbage collection, if the run is long enough for a slope. */
const MAX_HELD_SLOPE_MIB_PER_HOUR = 1;
const MIN_SLOPE_SECONDS = 3_600;
/** The highest number in the second half above that in the first. It varies in both: connections to the upstream, up to 128, and hostile clients. */
const MAX_DESCRIPTOR_GROWTH = 50;
const LOADS = { mixed: mixedLoad, connections: connectionsLoad, http2: http2Load } as const;
if (!(values.load in LOADS)) throw new Error(`--load: expected mixed, connections or http2; got ${values.load}`);
const load = LOADS[values.load as keyof typeof LOADS];
const seconds = Number(values.minutes) * 60;
const found = await soak({
  seconds,
  load,
  warmUpSeconds: Math.min(300, seconds / 4),
  everySeconds: Math.max(5, seconds / 120),
  ...(values.entry !== undefined && { entry: resolve(values.entry) }),
  onSample: ({ second, anonymousMiB, rssMiB, descriptors, connections, lagSeconds }) =>
    console.log(
      `${at(second)}  ${mebibytes(anonymousMiB)} anonymous  ${mebibytes(rssMiB)} resident  ${descriptors} descriptors  ${connections} connections  ${milliseconds(lagSeconds)} lag`,
    ),
  onHeapSample: (sample) => console.log(`${at(sample.second)}  held: ${formatHeld(sample)}`),
});
const { samples, heapSamples, failures, exitCode, anonymousGrowth, heldGrowth } = found;
const { descriptorSpread, descriptorGrowth } = found;
const ok =
  failures.length === 0 &&
  found.rejected <= found.completed * MAX_REJECTED &&
  exitCode === 0 &&
  found.missedSamples <= samples.length * MAX_MISSED &&
  descriptorGrowth <= MAX_DESCRIPTOR_GROWTH &&
  anonymousGrowth <= MAX_ANONYMOUS_GROWTH_MIB &&
  heldGrowth <= MAX_HELD_GROWTH_MIB &&
  (seconds < MIN_SLOPE_SECONDS || found.heldSlope <= MAX_HELD_SLOPE_MIB_PER_HOUR);

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
  ...heapSamples.map((sample) => [`held, ${sample.second} s`, formatHeld(sample)] as const),
  [
    'held, growth',
    `${heldGrowth.toFixed(1)} MiB since the middle (at most ${MAX_HELD_GROWTH_MIB}), slope ${found.heldSlope.toFixed(1)} MiB/h`,
  ],
  [
    'descriptors',
    `${formatRange(({ descriptors }) => String(descriptors))}, within ${descriptorSpread}, peak growth ${descriptorGrowth}`,
  ],
  [
    'event-loop lag',
    `p50 ${milliseconds(found.lagP50)}, p99 ${milliseconds(found.lagP99)} (longest delay before each sample)`,
  ],
  ...Object.entries(found.activities).map(([name, count]) => [name, String(count)] as const),
  ['exit code', String(exitCode)],
];
console.log(`\nafter ${values.minutes} min, ${samples.length} samples, ${found.missedSamples} missed:`);
for (const [name, value] of rows) console.log(`  ${name.padEnd(16)} ${value}`);
for (const failure of failures.slice(0, 20)) console.log(`  ${failure}`);
recordFigures(`soak-${values.load}`, {
  minutes: values.minutes,
  responses: found.completed,
  'of these 503': found.rejected,
  failures: failures.length,
  'heap after garbage collection at the start, in the middle and at the end, MiB': [
    heapSamples[0],
    heapSamples[Math.floor(heapSamples.length / 2)],
    heapSamples.at(-1),
  ]
    .map((sample) => sample?.heapMiB)
    .join(', '),
  // Extrapolated from minutes, a slope per hour says nothing.
  ...(seconds >= MIN_SLOPE_SECONDS && {
    'slope of memory after garbage collection in the second half, MiB/h': found.heldSlope.toFixed(1),
    'slope of anonymous memory in the second half, MiB/h': found.anonymousSlope.toFixed(1),
  }),
  'growth of file descriptors': descriptorGrowth,
});
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
function formatHeld({ heapMiB, arrayBuffersMiB, externalMiB, anonymousMiB, handles }: HeapSample): string {
  const list = Object.entries(handles).map(([type, count]) => `${count} ${type}`);
  return `heap ${heapMiB} MiB, outside of it ${externalMiB} MiB (buffers ${arrayBuffersMiB}), anonymous ${anonymousMiB} MiB; handles: ${list.join(', ')}`;
}
