import { defineConfig } from 'vitest/config';

/** Tests in a real cluster: `npm run test:cluster` starts it in namespaces of its own. */
export default defineConfig({
  test: {
    include: ['test/cluster/**/*.cluster.ts'],
    globalSetup: 'test/cluster/set-up.ts',
    // The published counts take most of an hour.
    testTimeout: 5_400_000,
    hookTimeout: 600_000,
    // All files share one cluster; each has its own namespaces.
    maxWorkers: 1,
    fileParallelism: false,
    experimental: { viteModuleRunner: false, nodeLoader: false },
  },
});
