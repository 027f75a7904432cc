import { expect, test } from 'vitest';
import { fuzzLanes } from './lanes.ts';

/** Seeds are fixed; `npm run fuzz:lanes` takes others, and a million. */
test('12,000 messages go upstream by the fast lane as they go by the full one', async () => {
  const { sent, requests, fast, handedOver, answered, foreign } = await fuzzLanes({ count: 12_000, seed: 5 });
  expect(sent).toBe(12_000);
  expect(requests).toBeGreaterThan(18_000);
  // Both lanes had their share; the end of many was known by an answer, on a connection that was used again.
  expect(fast).toBeGreaterThan(10_000);
  expect(handedOver).toBeGreaterThan(4_000);
  expect(answered).toBeGreaterThan(4_000);
  expect(foreign).toBeGreaterThan(20_000);
}, 400_000);
