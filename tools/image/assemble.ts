import { chmodSync, cpSync, existsSync, lstatSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/**
 * Puts together what the image holds, from a built checkout without development packages:
 *   <out>/root  goes to /
 *   <out>/data  becomes /var/lib/gatehouse
 */
const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const [out = '/out'] = process.argv.slice(2);
const app = join(out, 'root/opt/gatehouse');
const bin = join(out, 'root/usr/local/bin');

/** Packages that bring Node itself: the program is taken out of them, the rest stays behind. */
const isRuntime = (name: string): boolean => /^node-(linux|bin)-/.test(name);

/** What no running program reads. */
const IDLE =
  /(\.(md|markdown|map|ts|mts|cts|flow|tsbuildinfo|gyp|gypi|cc|cpp|c|h|hpp)$|^(\.|CHANGELOG|binding\.gyp$))/i;
const IDLE_FOLDERS = new Set(['.bin', '.github']);

const shouldKeep = (path: string): boolean => {
  const name = basename(path);
  if (lstatSync(path).isDirectory()) return !IDLE_FOLDERS.has(name);
  return !IDLE.test(name) || /^licen[cs]e/i.test(name);
};

const runtime = readdirSync(join(ROOT, 'node_modules')).filter(isRuntime);
const node = runtime
  .map((name) => join(ROOT, 'node_modules', name, 'bin/node'))
  .find((file) => existsSync(file));
if (node === undefined) throw new Error('no package with Node for this machine is installed');

mkdirSync(bin, { recursive: true });
for (const folder of ['etc/gatehouse', 'var/lib']) mkdirSync(join(out, 'root', folder), { recursive: true });
mkdirSync(join(out, 'data'), { recursive: true, mode: 0o700 });
cpSync(node, join(bin, 'node'));
chmodSync(join(bin, 'node'), 0o755);
// The kernel reads the first line: no shell is needed to run it.
writeFileSync(
  join(bin, 'gatehouse'),
  "#!/usr/local/bin/node\nprocess.argv[1] = '/opt/gatehouse/dist/main.js';\nimport('/opt/gatehouse/dist/main.js');\n",
  { mode: 0o755 },
);
copyLibrary('libatomic.so.1');
cpSync(join(ROOT, 'dist'), join(app, 'dist'), { recursive: true });
// The list of what is in it is for those who look for known weaknesses.
for (const file of ['package.json', 'LICENSE', 'sbom.cdx.json']) cpSync(join(ROOT, file), join(app, file));
cpSync(join(ROOT, 'node_modules'), join(app, 'node_modules'), {
  recursive: true,
  filter: (path) => !isRuntime(basename(path)) && shouldKeep(path),
});

/** Node needs it, and runtime images of the small kind lack it; the build stage has it, or its own Node would not run. */
function copyLibrary(name: string): void {
  const folders = ['/usr/lib', '/lib'].filter((folder) => existsSync(folder));
  const places = folders.flatMap((folder) => [
    folder,
    ...readdirSync(folder)
      .filter((inner) => inner.endsWith('-linux-gnu'))
      .map((inner) => join(folder, inner)),
  ]);
  const found = places.map((place) => join(place, name)).find((file) => existsSync(file));
  if (found === undefined) throw new Error(`${name} is not in the build stage; install libatomic1`);
  const target = join(out, 'root', found.replace(/^\/lib\//, '/usr/lib/'));
  cpSync(found, target, { dereference: true, recursive: true });
}
