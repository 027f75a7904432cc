import { defineConfig } from 'vitest/config';

/** What needs root and buildah: `npm run test:image`. */
export default defineConfig({
  test: { include: ['test/image/**/*.image.ts'], testTimeout: 120_000, hookTimeout: 900_000, maxWorkers: 1 },
});
