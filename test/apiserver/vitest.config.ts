import { defineConfig } from 'vitest/config';

/** What needs a real API server, built by Go: `npm run test:apiserver`. */
export default defineConfig({
  test: {
    include: ['test/apiserver/**/*.apiserver.ts'],
    globalSetup: 'test/apiserver/set-up.ts',
    testTimeout: 120_000,
    hookTimeout: 900_000,
    // One API server for all; each file has namespaces of its own.
    maxWorkers: 1,
  },
});
