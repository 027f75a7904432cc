import { expect, test } from 'vitest';
import { fuzzResponses } from './responses.ts';

test.each([true, false])(
  'X15 S23 thousands of damaged responses: the process continues with a small heap, logs them and serves others (fast path: %s)',
  async (fastPath) => {
    const sent = await fuzzResponses({ count: 500, seed: fastPath ? 2 : 3 });
    expect(Object.values(sent).reduce((sum, count) => sum + count, 0)).toBeGreaterThan(2_000);
  },
  3_600_000,
);
