import { expect, test } from 'vitest';
import { soak } from '../../tools/soak/soak.ts';

test('O12 a minute of mixed load: no request fails, and memory and descriptors do not grow', async () => {
  const { failures, samples, heapSamples, anonymousGrowth, completed, rejected, lagP99, exitCode } =
    await soak({
      seconds: 60,
      warmUpSeconds: 20,
      everySeconds: 4,
    });
  expect(failures).toEqual([]);
  expect(completed - rejected).toBeGreaterThan(1_000);
  const half = Math.floor(samples.length / 2);
  const most = (part: typeof samples, of: (sample: (typeof samples)[number]) => number): number =>
    Math.max(...part.map(of));
  // A minute shows no slow leak (`npm run soak` does), but a fast one: in what is held after a full collection, and in the
  // memory of the process.
  const [early, , late] = heapSamples;
  expect(late.heapMiB + late.externalMiB - early.heapMiB - early.externalMiB).toBeLessThan(12);
  expect(anonymousGrowth).toBeLessThan(64);
  const descriptors =
    most(samples.slice(half), (sample) => sample.descriptors) -
    most(samples.slice(0, half), (sample) => sample.descriptors);
  expect(descriptors).toBeLessThan(20);
  // How long it is depends on the machine; that it is measured does not.
  expect(lagP99).toBeGreaterThanOrEqual(0);
  expect(exitCode).toBe(0);
}, 300_000);
