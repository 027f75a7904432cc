import { existsSync, globSync, readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { VARIANTS } from './full.config.ts';

/** The modules of its own folder that a test imports, which may choose variants for it. */
const OWN_MODULES = /from '\.\/([^']+)'/g;
const CALL = /\bchooseVariants[<(]/;

function choosesVariants(file: string): boolean {
  const source = readFileSync(file, 'utf8');
  const folder = file.slice(0, file.lastIndexOf('/'));
  const modules = [...source.matchAll(OWN_MODULES)].map(([, name = '']) => `${folder}/${name}`);
  return CALL.test(source) || modules.some((module) => CALL.test(readFileSync(module, 'utf8')));
}

test('every file that is run again in the full suite exists', () => {
  expect(VARIANTS.filter((file) => !existsSync(file))).toEqual([]);
});

test('the full suite runs all variants of every test that chooses some of them', () => {
  const files = globSync('test/*/**/*.test.ts').filter((file) => !file.endsWith('.full.test.ts'));
  expect(files.filter(choosesVariants).toSorted()).toEqual(VARIANTS.toSorted());
});
