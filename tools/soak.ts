import { parseArgs } from 'node:util';
import { soak } from '../test/support/soak.ts';

/** Row O12, at length: `npm run soak`, or `npm run soak -- --minutes 120`. Exit code 1 when something grew or failed. */
const { values } = parseArgs({ options: { minutes: { type: 'string', default: '20' } } });
const seconds = Number(values.minutes) * 60;
const found = await soak({
  seconds,
  warmUpSeconds: Math.min(300, seconds / 4),
  everySeconds: Math.max(5, seconds / 120),
  onSample: ({ second, rssMiB, descriptors }) =>
    console.log(
      `${String(second).padStart(6)} s  ${rssMiB.toFixed(1).padStart(7)} MiB  ${descriptors} descriptors`,
    ),
});
const { answered, failures, rssSlope, samples, exitCode } = found;
const descriptors = samples.map((sample) => sample.descriptors);
const spread = Math.max(...descriptors) - Math.min(...descriptors);
console.log(
  `${answered} answers, ${failures.length} failures, memory ${rssSlope.toFixed(1)} MiB/h, descriptors within ${spread}, exit code ${exitCode}`,
);
for (const failure of failures.slice(0, 20)) console.log(`  ${failure}`);
process.exitCode = failures.length === 0 && exitCode === 0 && spread < 50 ? 0 : 1;
