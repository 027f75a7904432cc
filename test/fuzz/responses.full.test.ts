import { expect, test } from 'vitest';
import { fuzzResponses, PLACES } from './responses.ts';

/** The seeds are fixed; `npm run fuzz:responses` sends others, and more. */
test.each([2, 3])(
  'X15 S23 damaged responses to requests of every kind: the process continues with a small heap, logs them and serves others (seed %i)',
  async (seed) => {
    const sent = await fuzzResponses({ count: 60, seed });
    for (const place of PLACES) expect(sent[place], place).toBeGreaterThan(0);
  },
);
