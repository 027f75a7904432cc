import { expect, test } from 'vitest';
import { fuzzPaths } from './paths.ts';

const COUNT = 12_000;

test(`${COUNT} messages reach the upstream in the same form through the fast path and the full path`, async () => {
  const { sent, fast, fallbacks, completed, retried, thirdParty } = await fuzzPaths({
    count: COUNT,
    seed: 5,
    go: true,
  });
  expect([sent, retried]).toEqual([COUNT, 0]);
  expect(fast).toBeGreaterThan(10_000);
  expect(fallbacks).toBeGreaterThan(4_000);
  expect(completed).toBeGreaterThan(4_000);
  expect(thirdParty).toBeGreaterThan(20_000);
}, 1_800_000);
