import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { runChild } from '../support/child-process.ts';

const DIST = join(import.meta.dirname, '../../dist');

test('a stack trace of the built program names the TypeScript sources', async () => {
  const { code, stderr } = await runChild([
    process.execPath,
    join(DIST, 'main.js'),
    'keys',
    'list',
    join(DIST, 'missing'),
    '--trace',
  ]);
  expect(code).toBe(66);
  expect(stderr).toMatch(/ at Object\.run \(.*\/src\/commands\/keys\.ts:\d+:\d+\)/);
});

test('the build contains the licences of what it bundles, and no path of the machine that built it', () => {
  const licences = readFileSync(join(DIST, 'LICENSES.txt'), 'utf8');
  for (const name of ['ioredis', 'jose', 'lru-cache', 'undici', 'yaml', 'zod'])
    expect(licences).toMatch(new RegExp(`^${name} \\d+\\.\\d+\\.\\d+$`, 'm'));
  const root = join(DIST, '..');
  for (const file of readdirSync(DIST).filter((name) => /\.(?:js|map)$/.test(name))) {
    const text = readFileSync(join(DIST, file), 'utf8');
    expect(text.includes(root), file).toBe(false);
    if (file.endsWith('.js')) expect(/^[\0-\x7f]*$/.test(text), file).toBe(true);
  }
});
