import { expect, test } from 'vitest';
import { fuzzPaths } from './paths.ts';

/** The seed is fixed; `npm run test:full` sends more messages, and `npm run fuzz:paths` a million with another seed. */
test('600 messages reach the upstream in the same form through the fast path and the full path', async () => {
  const { sent, requests, fast, fallbacks, completed, retried, thirdParty } = await fuzzPaths({
    count: 600,
    seed: 5,
  });
  expect([sent, retried]).toEqual([600, 0]);
  // Both paths were exercised, and many cases ended with a response on a reused connection.
  expect(requests).toBeGreaterThan(900);
  expect(fast).toBeGreaterThan(500);
  expect(fallbacks).toBeGreaterThan(150);
  expect(completed).toBeGreaterThan(200);
  expect(thirdParty).toBeGreaterThan(1_000);
}, 120_000);
