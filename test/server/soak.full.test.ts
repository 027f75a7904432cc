import { expect, test } from 'vitest';
import { http2Load } from '../../tools/soak/http2-load.ts';
import { soak } from '../../tools/soak/soak.ts';

test('O12 a minute of mixed load: no request fails, and memory and descriptors do not grow', async () => {
  const { failures, samples, heapSamples, anonymousGrowth, completed, rejected, lagP99, exitCode } = await soak({
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
  const held = heapSamples.map(({ heapMiB, externalMiB }) => heapMiB + externalMiB);
  expect(Number(held.at(-1)) - Number(held[0])).toBeLessThan(12);
  expect(anonymousGrowth).toBeLessThan(64);
  const descriptors =
    maxOf(samples.slice(half), (sample) => sample.descriptors) -
    maxOf(samples.slice(0, half), (sample) => sample.descriptors);
  expect(descriptors).toBeLessThan(20);
  // The lag itself depends on the machine.
  expect(lagP99).toBeGreaterThanOrEqual(0);
  expect(exitCode).toBe(0);
}, 300_000);

test('O12 a minute of HTTP/2 clients of all kinds: no request fails, and memory and handles do not grow', async () => {
  const { failures, heapSamples, completed, exitCode } = await soak({
    load: http2Load,
    seconds: 60,
    warmUpSeconds: 20,
    everySeconds: 4,
  });
  expect(failures).toEqual([]);
  expect(completed).toBeGreaterThan(1_000);
  // Measured without clients.
  const held = heapSamples.map(({ heapMiB, externalMiB }) => heapMiB + externalMiB);
  expect(Number(held.at(-1)) - Number(held[Math.floor(held.length / 2)])).toBeLessThan(6);
  for (const { handles } of heapSamples) expect(handles).toMatchObject({ TCPServerWrap: 2 });
  expect(exitCode).toBe(0);
}, 300_000);
