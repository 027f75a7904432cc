import { expect, test } from 'vitest';
import { fuzzResponses, PLACES } from './responses.ts';

/** The seed is fixed; `npm run test:full` sends more, and `npm run fuzz:responses` others. */
test('X15 S23 damaged responses to requests of every kind: the process continues with a small heap, logs them and serves others', async () => {
  const sent = await fuzzResponses({ count: 16, seed: 1 });
  expect(Object.keys(sent).toSorted()).toEqual([...PLACES].toSorted());
  for (const place of PLACES) expect(sent[place], place).toBeGreaterThan(0);
}, 300_000);
