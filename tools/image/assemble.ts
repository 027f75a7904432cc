import { execFileSync } from 'node:child_process';
import { chmodSync, cpSync, existsSync, lstatSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { EXTERNAL_PACKAGES } from '../external-packages.ts';

interface PackageFile {
  readonly dependencies?: Readonly<Record<string, string>>;
  readonly optionalDependencies?: Readonly<Record<string, string>>;
}

/**
 * Assembles the contents of the image from a built checkout without development dependencies:
 *   <out>/root  is copied to /
 *   <out>/data  becomes /var/lib/gatehouse
 */
const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const [out = '/out'] = process.argv.slice(2);
const app = join(out, 'root/opt/gatehouse');
const bin = join(out, 'root/usr/local/bin');

/** Packages that contain Node itself; only the binary is copied. */
const isRuntime = (name: string): boolean => /^node-(linux|bin)-/.test(name);

/** Files that are not needed at run time. Of the builds of lmdb, Node with glibc loads `node.napi.glibc.node`. */
const UNUSED =
  /(\.(md|markdown|map|ts|mts|cts|flow|tsbuildinfo|gyp|gypi|cc|cpp|c|h|hpp)$|^(\.|CHANGELOG|binding\.gyp$)|(?:abi\d+|musl).*\.node$)/i;
const UNUSED_FOLDERS = new Set(['.bin', '.github']);

const shouldKeep = (path: string): boolean => {
  const name = basename(path);
  if (lstatSync(path).isDirectory()) return !UNUSED_FOLDERS.has(name);
  return !UNUSED.test(name) || /^licen[cs]e/i.test(name);
};

const runtime = readdirSync(join(ROOT, 'node_modules')).filter(isRuntime);
const node = runtime.map((name) => join(ROOT, 'node_modules', name, 'bin/node')).find((file) => existsSync(file));
if (node === undefined) throw new Error('no Node package for this architecture is installed');

mkdirSync(bin, { recursive: true });
for (const folder of ['etc/gatehouse', 'var/lib']) mkdirSync(join(out, 'root', folder), { recursive: true });
mkdirSync(join(out, 'data'), { recursive: true, mode: 0o700 });
// Without symbols, which are a fifth of it. Native modules need those in another section, which stays.
execFileSync('strip', ['-o', join(bin, 'node'), node]);
chmodSync(join(bin, 'node'), 0o755);
// The kernel interprets the shebang, so no shell is needed.
writeFileSync(
  join(bin, 'gatehouse'),
  "#!/usr/local/bin/node --max-semi-space-size=8\nprocess.argv[1] = '/opt/gatehouse/dist/main.js';\nimport('/opt/gatehouse/dist/main.js');\n",
  { mode: 0o755 },
);
copyLibrary('libatomic.so.1');
copyLibrary('libjemalloc.so.2');
cpSync(join(ROOT, 'dist'), join(app, 'dist'), { recursive: true });
// The SBOM is for vulnerability scanners.
for (const file of ['package.json', 'LICENSE', 'sbom.cdx.json', 'docs/openapi.json'])
  cpSync(join(ROOT, file), join(app, file));
for (const name of findPackages(EXTERNAL_PACKAGES))
  cpSync(join(ROOT, 'node_modules', name), join(app, 'node_modules', name), { recursive: true, filter: shouldKeep });

/** Packages with their dependencies, as far as they are installed: npm skips those of other platforms. */
function findPackages(names: readonly string[]): ReadonlySet<string> {
  const found = new Set(names);
  for (const name of found) {
    const file = join(ROOT, 'node_modules', name, 'package.json');
    const { dependencies = {}, optionalDependencies = {} } = JSON.parse(readFileSync(file, 'utf8')) as PackageFile;
    for (const dependency of Object.keys({ ...dependencies, ...optionalDependencies }))
      if (existsSync(join(ROOT, 'node_modules', dependency))) found.add(dependency);
  }
  return found;
}

/** Copies a shared library that Node needs and minimal runtime images lack from the build stage. */
function copyLibrary(name: string): void {
  const folders = ['/usr/lib', '/lib'].filter((folder) => existsSync(folder));
  const candidates = folders.flatMap((folder) => [
    folder,
    ...readdirSync(folder)
      .filter((inner) => inner.endsWith('-linux-gnu'))
      .map((inner) => join(folder, inner)),
  ]);
  const found = candidates.map((directory) => join(directory, name)).find((file) => existsSync(file));
  if (found === undefined) throw new Error(`${name} is not in the build stage; install libatomic1`);
  const target = join(out, 'root', found.replace(/^\/lib\//, '/usr/lib/'));
  cpSync(found, target, { dereference: true, recursive: true });
}
