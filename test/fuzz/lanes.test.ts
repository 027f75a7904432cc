import { expect, test } from 'vitest';
import { fuzzLanes } from './lanes.ts';

/** Seeds are fixed; `npm run fuzz:lanes` takes others, and a million. */
test('20,000 messages go upstream by the fast lane as they go by the full one', async () => {
  const { sent, fast, handedOver } = await fuzzLanes({ count: 20_000, seed: 5 });
  expect(sent).toBe(20_000);
  // Both lanes had their share.
  expect(fast).toBeGreaterThan(8_000);
  expect(handedOver).toBeGreaterThan(5_000);
}, 400_000);
