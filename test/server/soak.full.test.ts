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
  const maxOf = (part: typeof samples, read: (sample: (typeof samples)[number]) => number): number =>
    Math.max(...part.map(read));
  // A minute is too short to detect slow leaks (`npm run soak` does), but shows fast ones, in the heap after a full garbage
  // collection and in the memory of the process.
  const [early, , late] = heapSamples;
  expect(late.heapMiB + late.externalMiB - early.heapMiB - early.externalMiB).toBeLessThan(12);
  expect(anonymousGrowth).toBeLessThan(64);
  const descriptors =
    maxOf(samples.slice(half), (sample) => sample.descriptors) -
    maxOf(samples.slice(0, half), (sample) => sample.descriptors);
  expect(descriptors).toBeLessThan(20);
  // The lag itself depends on the machine.
  expect(lagP99).toBeGreaterThanOrEqual(0);
  expect(exitCode).toBe(0);
}, 300_000);
