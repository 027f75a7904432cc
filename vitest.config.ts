import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    globalSetup: ['test/support/set-up.ts'],
    testTimeout: 60_000,
    hookTimeout: 60_000,
    maxWorkers: 2,
    // A bounded wait can run out on two busy cores. Once more tells noise from a fault; the report names what was repeated.
    retry: process.env['CI'] ? 1 : 0,
  },
});
