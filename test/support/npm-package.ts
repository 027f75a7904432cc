import { execFile } from 'node:child_process';
import { existsSync, mkdirSync, renameSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { TestContext } from 'vitest';

const CACHE = join(import.meta.dirname, '../../node_modules/.cache');
const INSTALL_MS = 240_000;

/** Installs a package once for all runs of a checkout; returns its folder. Skips the test without a registry. */
export async function installNpmPackage(context: TestContext, name: string, version: string): Promise<string> {
  const folder = join(CACHE, `${name.replace('/', '-')}-${version}`);
  if (!existsSync(folder)) {
    const newFolder = `${folder}.${process.pid}`;
    mkdirSync(newFolder, { recursive: true });
    const options = ['--ignore-scripts', '--no-audit', '--no-fund', '--prefix', newFolder];
    try {
      await promisify(execFile)('npm', ['install', ...options, `${name}@${version}`], {
        timeout: INSTALL_MS,
      });
      renameSync(newFolder, folder);
    } catch (error) {
      rmSync(newFolder, { recursive: true, force: true });
      context.skip(`npm cannot install ${name} (is a registry reachable?): ${(error as Error).message}`);
    }
  }
  return join(folder, 'node_modules', name);
}
