import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, expect, test } from 'vitest';
import { needs } from '../set-up/programs.ts';
import { tempFolder } from '../support/temp-folder.ts';

needs('chromium');

const TOOL = fileURLToPath(new URL('../../tools/screenshots.ts', import.meta.url));
const folder = tempFolder('screenshots');
afterAll(() => folder.remove());

test('two runs of the screenshots tool write the same bytes', () => {
  const [first, second] = ['first', 'second'].map((run) => {
    const target = join(folder.path, run);
    execFileSync(process.execPath, [TOOL, target, 'review', 'grants', 'revoke']);
    return new Map(readdirSync(target).map((name) => [name, readFileSync(join(target, name), 'base64')]));
  });
  expect(first?.size).toBeGreaterThanOrEqual(9);
  expect(second).toEqual(first);
});
