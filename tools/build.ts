/**
 * Builds the program: `npm run build` writes dist/.
 *
 * One file for what every process loads, and further files for what is imported on demand. Reading and compiling one file
 * takes a fraction of the time and memory of several hundred modules (docs/decisions/0049-one-file.md).
 */
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { decode, encode } from '@jridgewell/sourcemap-codec';
import { type Plugin, rolldown } from 'rolldown';
import { getAnnotatedSchema } from '../src/config/known-settings.ts';
import { EXTERNAL_PACKAGES } from './external-packages.ts';

const ROOT = join(import.meta.dirname, '..');
const OUT = join(ROOT, 'dist');

/** The JSON Schema of the settings is computed once, here, and not at each start. */
const precomputeSchema: Plugin = {
  name: 'precompute-settings-schema',
  load: {
    filter: { id: /\/src\/config\/annotated-schema\.ts$/ },
    handler: () =>
      `const text = ${JSON.stringify(JSON.stringify(getAnnotatedSchema()))};
       export const createAnnotatedSchema = () => JSON.parse(text);`,
  },
};

/** What probes and hooks run beside the server: they load as little as possible. */
const SMALL_COMMANDS = ['drain', 'health', 'sleep', 'version'];
/** `\\uXXXX` instead of one character. */
const ESCAPE_GROWTH = 5;
let serverModules: ReadonlySet<string> = new Set();

/** Finds the modules that the server needs at start and small commands do not: they become one file. */
const findServerModules: Plugin = {
  name: 'find-server-modules',
  buildEnd() {
    const getImports = (id: string): readonly string[] => this.getModuleInfo(id)?.importedIds ?? [];
    const small = findImports(['run', ...SMALL_COMMANDS].map(getCommandFile), getImports);
    serverModules = findImports([getCommandFile('serve')], getImports).difference(small);
  },
};

const getCommandFile = (name: string): string => join(ROOT, `src/commands/${name}.ts`);

function findImports(entries: readonly string[], getImports: (id: string) => readonly string[]): Set<string> {
  const found = new Set(entries);
  // A set is iterated with what is added to it meanwhile.
  for (const id of found) for (const imported of getImports(id)) found.add(imported);
  return found;
}

rmSync(OUT, { recursive: true, force: true });
const bundle = await rolldown({
  cwd: ROOT,
  input: { main: 'src/main.ts', 'crl-worker': 'src/x509/crl-worker.ts', 'client/index': 'src/client/index.ts' },
  platform: 'node',
  preserveEntrySignatures: 'allow-extension',
  external: [...EXTERNAL_PACKAGES],
  plugins: [precomputeSchema, findServerModules],
});
const { output } = await bundle.write({
  dir: OUT,
  format: 'esm',
  // In one folder: src/lib/package-root.ts relies on it.
  entryFileNames: '[name].js',
  chunkFileNames: '[name]-[hash].js',
  codeSplitting: {
    includeDependenciesRecursively: false,
    groups: [{ name: 'server', test: (id) => serverModules.has(id) }],
  },
  sourcemap: true,
  // The package has no sources: traces name the file and line only.
  sourcemapExcludeSources: true,
  minify: {
    compress: true,
    mangle: { toplevel: false, keepNames: { function: true, class: true } },
    codegen: { removeWhitespace: true },
  },
});
await bundle.close();

for (const { fileName } of output) if (fileName.endsWith('.js')) escapeNonAscii(join(OUT, fileName));

/**
 * Node keeps a source in two bytes for each character if one of them is not ASCII. Escape sequences are equivalent in
 * strings, templates and regular expressions, and nothing else contains such characters.
 */
function escapeNonAscii(file: string): void {
  const pattern = /[\u0080-\uffff]/g;
  const text = readFileSync(file, 'utf8');
  if (text.search(pattern) === -1) return;
  const lines = text.split('\n');
  const map = JSON.parse(readFileSync(`${file}.map`, 'utf8')) as { mappings: string };
  const mappings = decode(map.mappings);
  for (const [index, line] of lines.entries()) {
    const columns = [...line.matchAll(pattern)].map((match) => match.index);
    for (const segment of mappings[index] ?? [])
      segment[0] += ESCAPE_GROWTH * columns.filter((column) => column < segment[0]).length;
  }
  writeFileSync(`${file}.map`, JSON.stringify({ ...map, mappings: encode(mappings) }));
  const escape = (character: string): string => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`;
  writeFileSync(file, text.replaceAll(pattern, escape));
}

/** The licences of the packages whose code is in dist/. */
const packages = new Map<string, string>();
for (const chunk of output) if (chunk.type === 'chunk') for (const id of chunk.moduleIds) addPackage(id);
const texts = [...packages].sort(([a], [b]) => a.localeCompare(b)).map(([name, text]) => `${name}\n\n${text.trim()}\n`);
writeFileSync(join(OUT, 'LICENSES.txt'), texts.join(`\n${'-'.repeat(80)}\n\n`));

function addPackage(id: string): void {
  const path = relative(ROOT, id);
  if (!path.startsWith('node_modules/')) return;
  let folder = dirname(join(ROOT, path));
  while (!existsSync(join(folder, 'package.json')) || !('version' in readPackage(folder))) folder = dirname(folder);
  const { name, version } = readPackage(folder);
  const label = `${name} ${version}`;
  if (packages.has(label)) return;
  const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
  if (file === undefined) throw new Error(`${label} has no licence file`);
  packages.set(label, readFileSync(join(folder, file), 'utf8'));
}

function readPackage(folder: string): { readonly name?: string; readonly version?: string } {
  return JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as { name?: string; version?: string };
}
