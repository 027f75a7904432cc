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
  ['x509', 'http2', 'grpc'],
  ['tokens', 'identity'],
  ['grants', 'config', 'stores', 'listener'],
  ['authsvc', 'oauth', 'pages', 'proxy', 'admin', 'client'],
  ['console'],
  ['server'],
  ['commands'],
  ['main.ts'],
];

const SRC = fileURLToPath(new URL('../src', import.meta.url));

const getModule = (file: string): string => file.split('/')[0] ?? file;
const getLayer = (file: string): number => LAYERS.findIndex((modules) => modules.includes(getModule(file)));
const isSameModule = (a: string, b: string): boolean => getModule(a) === getModule(b);

/** Static, dynamic, type-only, side-effect imports and re-exports. */
const listImports = (text: string): string[] =>
  [...text.matchAll(/\bfrom\s+'([^']+)'|\bimport\s*\(\s*'([^']+)'\s*\)|^import\s+'([^']+)'/gm)].map(
    ([, from, dynamic, bare]) => from ?? dynamic ?? bare ?? '',
  );

const sources = globSync('**/*.ts', { cwd: SRC }).map((file) => ({
  file,
  imports: listImports(readFileSync(join(SRC, file), 'utf8')),
}));

const layerViolations = (files: typeof sources): string[] =>
  files.flatMap(({ file, imports }) =>
    imports
      .filter((to) => to.startsWith('.'))
      .map((to) => join(dirname(file), to))
      .filter((to) => !isSameModule(to, file) && getLayer(to) >= getLayer(file))
      .map((to) => `${file} → ${to}`),
  );

test('every source file belongs to a known module', () => {
  expect(sources.length).toBeGreaterThan(40);
  expect(sources.map(({ file }) => file).filter((file) => getLayer(file) < 0)).toEqual([]);
});

test('modules import only from themselves or lower layers', () => {
  expect(layerViolations(sources)).toEqual([]);
});

test('an import from a higher or a sibling layer is detected', () => {
  const up = listImports("import { a } from '../proxy/a.ts';\nconst b = await import('../stores/b.ts');");
  expect(layerViolations([{ file: 'grants/bad.ts', imports: up }])).toEqual([
    'grants/bad.ts → proxy/a.ts',
    'grants/bad.ts → stores/b.ts',
  ]);
});

test('the domain imports only itself: no packages, not even Node', () => {
  const outside = sources
    .filter(({ file }) => getModule(file) === 'domain')
    .flatMap(({ file, imports }) => imports.filter((to) => !to.startsWith('./')).map((to) => `${file} → ${to}`));
  expect(outside).toEqual([]);
});

test('the domain reads no clock, no environment and no random numbers', () => {
  const impure = sources
    .filter(({ file }) => getModule(file) === 'domain')
    .filter(({ file }) =>
      /\b(?:Date\.now|new Date\(\)|performance\.now|Math\.random|process\.)/.test(
        readFileSync(join(SRC, file), 'utf8'),
      ),
    );
  expect(impure.map(({ file }) => file)).toEqual([]);
});

test('no array of unknown length is passed to Math.min or Math.max as arguments', () => {
  const spread = sources.filter(({ file }) =>
    /\bMath\.(?:min|max)\(\.\.\.|\bfromCharCode\(\.\.\./.test(readFileSync(join(SRC, file), 'utf8')),
  );
  expect(spread.map(({ file }) => file)).toEqual([]);
});

test('imported packages are dependencies in package.json', () => {
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

test('test hooks are registered by test files, or by functions that they call', () => {
  // A worker loads a module once for all test files, so top-level hooks would run for the first file only.
  const test = new URL('.', import.meta.url);
  const early = readdirSync(test, { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.ts') && !/\.(?:test|chart|apiserver|cluster|image)\.ts$/.test(file))
    .filter((file) => /^(?:before|after)(?:All|Each)\(/m.test(readFileSync(new URL(file, test), 'utf8')));
  expect(early).toEqual([]);
});
