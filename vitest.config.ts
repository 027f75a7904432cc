import { defineConfig } from 'vitest/config';

/** The attack matrix on requests and answers, which must hold by either lane: run once more without the fast one. */
const BOTH_LANES = [
  'framing',
  'paths',
  'identity',
  'access-tokens',
  'upstream-answers',
  'upstream-streams',
].map((name) => `test/attack/${name}.test.ts`);

export default defineConfig({
  test: {
    projects: [
      { extends: true, test: { name: 'all', include: ['test/**/*.test.ts'] } },
      {
        extends: true,
        test: { name: 'full lane', include: BOTH_LANES, env: { GATEHOUSE_TEST_LANE: 'off' } },
      },
    ],
    globalSetup: ['test/support/set-up.ts'],
    testTimeout: 60_000,
    hookTimeout: 60_000,
    maxWorkers: 2,
    // A bounded wait can run out on two busy cores. Once more tells noise from a fault; the report names what was repeated.
    retry: process.env['CI'] ? 1 : 0,
  },
});
