import { defineConfig } from 'vitest/config';
import { skippedFiles } from './set-up/programs.ts';

/** The tests of which `npm test` runs some variants only (test/support/variants.ts). */
export const VARIANTS = [
  'test/attack/buffered-bodies.test.ts',
  'test/attack/dpop-proofs.test.ts',
  'test/attack/refused-clients.test.ts',
  'test/attack/refused-issuer-tokens.test.ts',
  'test/attack/refused-proofs-and-quotas.test.ts',
  'test/commands/init.test.ts',
  'test/deploy/chart-runs.test.ts',
  'test/deploy/service-manager.test.ts',
  'test/pages/browser-sign-in.test.ts',
  'test/pages/keyboard-and-language.test.ts',
  'test/proxy/downstream/slow-clients.test.ts',
  'test/server/graceful-shutdown.test.ts',
];

/** Start the program as a process, and use most of what is bundled or imported on demand. */
const BUILT_PROGRAM = [
  'test/fuzz/responses.full.test.ts',
  'test/server/graceful-shutdown.test.ts',
  'test/server/rejected-reload.full.test.ts',
  'test/server/workers/redis.full.test.ts',
  'test/stores/redis/start-checks.test.ts',
  'test/x509/hostile-crl-servers.test.ts',
];

/** `npm run test:full`: the long tests. */
export default defineConfig({
  test: {
    projects: [
      {
        extends: true,
        test: {
          name: 'long',
          include: ['test/**/*.full.test.ts'],
          exclude: [...skippedFiles().files, ...BUILT_PROGRAM],
        },
      },
      {
        extends: true,
        test: { name: 'all variants', include: VARIANTS, env: { GATEHOUSE_TEST_VARIANTS: 'all' } },
      },
      {
        extends: true,
        test: { name: 'built program', include: BUILT_PROGRAM, env: { GATEHOUSE_TEST_ENTRY: 'dist/main.js' } },
      },
    ],
    globalSetup: ['test/set-up/global-setup.ts'],
    testTimeout: 600_000,
    hookTimeout: 120_000,
    maxWorkers: 2,
    // Node strips types itself, and each worker loads the sources once. With vite's module runner and a process per file,
    // loading took more than half of the run.
    isolate: false,
    experimental: { viteModuleRunner: false, nodeLoader: false },
  },
});
