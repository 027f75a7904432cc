import { globSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';

/** The layers, from the bottom up. A file imports from its own module or from a lower layer. */
const LAYERS = [
  ['domain'],
  ['ports'],
  ['lib'],
  ['http', 'observability'],
  ['x509'],
  ['grants', 'config', 'stores', 'tokens', 'identity', 'listener'],
  ['authsvc', 'oauth', 'pages', 'proxy', 'admin', 'client'],
  ['server'],
  ['commands'],
  ['main.ts'],
];

const SRC = fileURLToPath(new URL('../src', import.meta.url));

const moduleOf = (file: string): string => file.split('/')[0] ?? file;
const layerOf = (file: string): number => LAYERS.findIndex((modules) => modules.includes(moduleOf(file)));
const isSameModule = (a: string, b: string): boolean => moduleOf(a) === moduleOf(b);

/** Static, dynamic, type-only, side-effect imports and re-exports. */
const importsOf = (text: string): string[] =>
  [...text.matchAll(/\bfrom\s+'([^']+)'|\bimport\s*\(\s*'([^']+)'\s*\)|^import\s+'([^']+)'/gm)].map(
    ([, from, dynamic, bare]) => from ?? dynamic ?? bare ?? '',
  );

const sources = globSync('**/*.ts', { cwd: SRC }).map((file) => ({
  file,
  imports: importsOf(readFileSync(join(SRC, file), 'utf8')),
}));

const layerViolations = (files: typeof sources): string[] =>
  files.flatMap(({ file, imports }) =>
    imports
      .filter((to) => to.startsWith('.'))
      .map((to) => join(dirname(file), to))
      .filter((to) => !isSameModule(to, file) && layerOf(to) >= layerOf(file))
      .map((to) => `${file} → ${to}`),
  );

test('every source file belongs to a known module', () => {
  expect(sources.length).toBeGreaterThan(40);
  expect(sources.map(({ file }) => file).filter((file) => layerOf(file) < 0)).toEqual([]);
});

test('modules import only from themselves or lower layers', () => {
  expect(layerViolations(sources)).toEqual([]);
});

test('an import from a higher or a sibling layer is detected', () => {
  const up = importsOf("import { a } from '../proxy/a.ts';\nconst b = await import('../stores/b.ts');");
  expect(layerViolations([{ file: 'grants/bad.ts', imports: up }])).toEqual([
    'grants/bad.ts → proxy/a.ts',
    'grants/bad.ts → stores/b.ts',
  ]);
});

test('the domain imports only itself: no packages, not even Node', () => {
  const outside = sources
    .filter(({ file }) => moduleOf(file) === 'domain')
    .flatMap(({ file, imports }) =>
      imports.filter((to) => !to.startsWith('./')).map((to) => `${file} → ${to}`),
    );
  expect(outside).toEqual([]);
});

test('the domain reads no clock, no environment and no random numbers', () => {
  const impure = sources
    .filter(({ file }) => moduleOf(file) === 'domain')
    .filter(({ file }) =>
      /\b(?:Date\.now|new Date\(\)|performance\.now|Math\.random|process\.)/.test(
        readFileSync(join(SRC, file), 'utf8'),
      ),
    );
  expect(impure.map(({ file }) => file)).toEqual([]);
});

test('packages are named in package.json as dependencies', () => {
  const { dependencies } = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8')) as {
    readonly dependencies: Readonly<Record<string, string>>;
  };
  const unknown = sources.flatMap(({ file, imports }) =>
    imports
      .filter((to) => !to.startsWith('.') && !to.startsWith('node:'))
      .filter((to) => !Object.keys(dependencies).some((name) => to === name || to.startsWith(`${name}/`)))
      .map((to) => `${file} → ${to}`),
  );
  expect(unknown).toEqual([]);
});

test('hooks of tests are registered by test files, or by functions that they call', () => {
  // A worker loads a module once for all test files: hooks at its top level would run for the first file only.
  const test = new URL('.', import.meta.url);
  const early = readdirSync(test, { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.ts') && !/\.(?:test|chart|apiserver|image)\.ts$/.test(file))
    .filter((file) => /^(?:before|after)(?:All|Each)\(/m.test(readFileSync(new URL(file, test), 'utf8')));
  expect(early).toEqual([]);
});
