import { expect, test } from 'vitest';
import { fuzzLanes } from './lanes.ts';

const COUNT = 12_000;

test(`${COUNT} messages reach the upstream through the fast path as they do through the full path`, async () => {
  const { sent, fast, handedOver, answered, again, foreign } = await fuzzLanes({
    count: COUNT,
    seed: 5,
    go: true,
  });
  expect([sent, again]).toEqual([COUNT, 0]);
  expect(fast).toBeGreaterThan(10_000);
  expect(handedOver).toBeGreaterThan(4_000);
  expect(answered).toBeGreaterThan(4_000);
  expect(foreign).toBeGreaterThan(20_000);
}, 1_800_000);
