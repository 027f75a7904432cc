import { expect, test } from 'vitest';
import { fuzzPaths } from './paths.ts';

const COUNT = 12_000;

test(`${COUNT} messages are read as by the HTTP parser of Node, and forwarded so that third-party servers read the same`, async () => {
  const { sent, accepted, forwarded, completed, retried, thirdParty } = await fuzzPaths({
    count: COUNT,
    seed: 5,
    go: true,
  });
  expect([sent, retried]).toEqual([COUNT, 0]);
  expect(accepted).toBeGreaterThan(14_000);
  expect(forwarded).toBeGreaterThan(10_000);
  expect(completed).toBeGreaterThan(4_000);
  expect(thirdParty).toBeGreaterThan(20_000);
}, 1_800_000);
