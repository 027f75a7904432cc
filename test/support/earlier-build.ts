import { execFileSync } from 'node:child_process';
import { symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { tempFolder } from './temp-folder.ts';

/** Until there is a release: a commit before trusted issuers, token exchange and the authorization code flow. */
export const EARLIER_COMMIT = process.env['EARLIER_COMMIT'] ?? '8e17c65b';

const ROOT = join(import.meta.dirname, '../..');

/** Not in a shallow clone, nor in an unpacked archive. */
export function hasEarlierBuild(): boolean {
  try {
    execFileSync('git', ['cat-file', '-e', `${EARLIER_COMMIT}^{commit}`], { cwd: ROOT, stdio: 'ignore' });
    return true;
  } catch {
    return false;
  }
}

/** The sources of the earlier build, which run with the packages of this one. */
export function checkOutEarlierBuild(): { readonly entry: string; readonly remove: () => void } {
  const folder = tempFolder('earlier');
  const archive = execFileSync('git', ['archive', EARLIER_COMMIT, 'src', 'package.json'], {
    cwd: ROOT,
    maxBuffer: 100_000_000,
  });
  execFileSync('tar', ['-x', '-C', folder.path], { input: archive });
  symlinkSync(join(ROOT, 'node_modules'), join(folder.path, 'node_modules'));
  return { entry: join(folder.path, 'src/main.ts'), remove: folder.remove };
}
