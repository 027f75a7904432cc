import { defineConfig } from 'vitest/config';
import { skippedFiles } from './test/set-up/programs.ts';

/** `npm test`: every behaviour once. The long matrices are `npm run test:full` (test/full.config.ts). */
export default defineConfig({
  test: {
    include: ['test/**/*.test.ts'],
    exclude: ['test/**/*.full.test.ts', ...skippedFiles().files],
    globalSetup: ['test/set-up/global-setup.ts'],
    // How long a test may wait on a busy machine before it counts as hanging; nothing is asserted about speed.
    testTimeout: 180_000,
    hookTimeout: 180_000,
    // More than the cores of a small machine: workers often wait for processes to start.
    maxWorkers: 6,
    // Node runs TypeScript itself, and each worker loads the sources once: with vite's module runner and a process for
    // each file, loading took more than half of the run.
    isolate: false,
    experimental: { viteModuleRunner: false, nodeLoader: false },
  },
});
