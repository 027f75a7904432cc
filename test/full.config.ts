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

/** `npm run test:full`: the long tests. */
export default defineConfig({
  test: {
    projects: [
      {
        extends: true,
        test: {
          name: 'long',
          include: ['test/**/*.full.test.ts'],
          exclude: [...skippedFiles().files],
        },
      },
      {
        extends: true,
        test: { name: 'all variants', include: VARIANTS, env: { GATEHOUSE_TEST_VARIANTS: 'all' } },
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
