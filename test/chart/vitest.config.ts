import { defineConfig } from 'vitest/config';

/** Tests that need Go: `npm run test:chart`. */
export default defineConfig({
  test: { include: ['test/chart/**/*.chart.ts'], testTimeout: 120_000, hookTimeout: 120_000, maxWorkers: 2 },
});
