import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

test('the npm package contains the pages and references that the program names, and nothing for developers', async () => {
  // Without its scripts, which build dist/ in the checkout.
  const { stdout } = await promisify(execFile)('npm', ['pack', '--dry-run', '--json', '--ignore-scripts'], {
    cwd: ROOT,
    maxBuffer: 16 * 1_024 * 1_024,
  });
  const packed = JSON.parse(stdout) as
    | readonly { readonly files: readonly { readonly path: string }[] }[]
    | Readonly<Record<string, { readonly files: readonly { readonly path: string }[] }>>;
  const paths = Object.values(packed).flatMap(({ files }) => files.map(({ path }) => path));
  expect(paths).toEqual(
    expect.arrayContaining([
      'bin/gatehouse',
      'README.md',
      'LICENSE',
      'docs/storage.md',
      'docs/configuration.schema.json',
      'docs/openapi.json',
      'docs/gatehouse.1',
    ]),
  );
  const unexpected = paths.filter(
    (path) =>
      !/^(?:bin|dist)\/|^docs\/[^/]+\.(?:md|json|1)$|^(?:package\.json|README\.md|LICENSE|CHANGELOG\.md)$/.test(path),
  );
  expect(unexpected).toEqual([]);
});
