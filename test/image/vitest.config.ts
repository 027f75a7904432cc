import { defineConfig } from 'vitest/config';

/** Tests that need root and buildah: `npm run test:image`. */
export default defineConfig({
  test: { include: ['test/image/**/*.image.ts'], testTimeout: 120_000, hookTimeout: 900_000, maxWorkers: 1 },
});
