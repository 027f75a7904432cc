import { defineConfig } from 'vitest/config';

/** Tests with a real API server, built with Go: `npm run test:apiserver`. */
export default defineConfig({
  test: {
    include: ['test/apiserver/**/*.apiserver.ts'],
    globalSetup: 'test/apiserver/set-up.ts',
    testTimeout: 120_000,
    hookTimeout: 900_000,
    // All files share one API server; each has its own namespaces.
    maxWorkers: 1,
  },
});
