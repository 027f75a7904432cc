import { expect, test } from 'vitest';
import { fuzzLanes } from './lanes.ts';

/** Seeds are fixed; `npm run fuzz:lanes` takes others, and a million. */
test('12,000 messages go upstream by the fast lane as they go by the full one', async () => {
  const { sent, fast, handedOver } = await fuzzLanes({ count: 12_000, seed: 5 });
  expect(sent).toBe(12_000);
  // Both lanes had their share.
  expect(fast).toBeGreaterThan(6_000);
  expect(handedOver).toBeGreaterThan(4_000);
}, 400_000);
