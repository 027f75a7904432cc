import { execFile } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const run = promisify(execFile);
const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const NOT_PACKED = new Set(['.git', 'node_modules', 'dist', 'test', 'bench', '.gatehouse', 'helm']);

/**
 * Installs the result of `npm pack` in a project's node_modules, like `npm install FILE`, with the dependencies of the
 * checkout, so that no registry is needed. The checkout itself is not changed.
 */
export async function installPacked(project: string): Promise<void> {
  const copy = mkdtempSync(join(tmpdir(), 'gatehouse-packed-'));
  try {
    for (const name of readdirSync(ROOT))
      if (!NOT_PACKED.has(name)) cpSync(join(ROOT, name), join(copy, name), { recursive: true });
    symlinkSync(join(ROOT, 'node_modules'), join(copy, 'node_modules'));
    const env = { ...process.env, PATH: `${dirname(process.execPath)}${delimiter}${process.env['PATH']}` };
    await run('npm', ['pack', '--offline', '--loglevel=error'], { cwd: copy, env, timeout: 110_000 });
    const { name, version } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as {
      readonly name: string;
      readonly version: string;
    };
    const modules = join(project, 'node_modules');
    mkdirSync(join(modules, name), { recursive: true });
    const tarball = join(copy, `${name}-${version}.tgz`);
    await run('tar', ['-xzf', tarball, '--strip-components=1', '-C', join(modules, name)], {
      timeout: 30_000,
    });
    for (const other of readdirSync(join(ROOT, 'node_modules')))
      if (other !== name) symlinkSync(join(ROOT, 'node_modules', other), join(modules, other));
  } finally {
    rmSync(copy, { recursive: true, force: true });
  }
}
