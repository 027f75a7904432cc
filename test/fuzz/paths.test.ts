import { expect, test } from 'vitest';
import { fuzzPaths } from './paths.ts';

/** The seed is fixed; `npm run test:full` sends more, and `npm run fuzz:paths` other messages, a million of them. */
test('600 messages reach the upstream through the fast path as they do through the full path', async () => {
  const { sent, requests, fast, fallbacks, completed, retried, thirdParty } = await fuzzPaths({
    count: 600,
    seed: 5,
  });
  expect([sent, retried]).toEqual([600, 0]);
  // Both paths had their share; the end of many was known by a response, on a connection that was reused.
  expect(requests).toBeGreaterThan(900);
  expect(fast).toBeGreaterThan(500);
  expect(fallbacks).toBeGreaterThan(150);
  expect(completed).toBeGreaterThan(200);
  expect(thirdParty).toBeGreaterThan(1_000);
}, 120_000);
