import { join } from 'node:path';
import { expect, test } from 'vitest';
import { run } from './helm.ts';

const WORKFLOWS = join(import.meta.dirname, '../../.github/workflows');

test.each(['ci.yml', 'release.yml'])('actionlint finds no fault in .github/workflows/%s', (file) => {
  // The result must not depend on the linters that are installed.
  const { status, stdout, stderr } = run('actionlint', ['-shellcheck=', '-pyflakes=', join(WORKFLOWS, file)]);
  expect(`${stdout}${stderr}`).toBe('');
  expect(status).toBe(0);
});
