import { randomBytes } from 'node:crypto';
import { chmodSync, closeSync, mkdirSync, openSync, rmSync, statSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import type { Logger } from '../observability/logger.ts';
import { isReadByOthers } from '../tokens/keyring-file.ts';
import { StartError } from './start-error.ts';

/** Makes the admin token when it is missing; readable by its owner only. Throws when other users can read it. */
export function ensureAdminToken(file: string, log?: Pick<Logger, 'warn'>): void {
  mkdirSync(dirname(file), { recursive: true, mode: 0o700 });
  // Left behind by a start on a full disk. An empty token is one that everybody knows.
  if (statSync(file, { throwIfNoEntry: false })?.size === 0) rmSync(file);
  let fd: number;
  try {
    fd = openSync(file, 'wx', 0o600);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    return restrict(file, log);
  }
  try {
    writeSync(fd, `${randomBytes(32).toString('base64url')}\n`);
  } finally {
    closeSync(fd);
  }
}

export type AdminTokenFault = { readonly kind: 'refused' | 'restricted'; readonly problem: string };

/**
 * Held to the rule of the key file, which allows for Secrets that a kubelet mounts. A file of gatehouse's own in a volume
 * gets the mode 0660 from a kubelet that applies `fsGroup`: it is restricted again, as the files of the store are.
 */
export function adminTokenFault(file: string): AdminTokenFault | undefined {
  const found = statSync(file, { throwIfNoEntry: false });
  if (found === undefined || process.platform === 'win32' || !isReadByOthers(file)) return undefined;
  const { mode, uid } = found;
  const problem = `other users can read ${file} (mode ${(mode & 0o777).toString(8)})`;
  return { kind: uid === process.geteuid?.() && (mode & 0o007) === 0 ? 'restricted' : 'refused', problem };
}

function restrict(file: string, log: Pick<Logger, 'warn'> | undefined): void {
  const fault = adminTokenFault(file);
  if (fault === undefined) return;
  if (fault.kind === 'refused') throw new StartError([adminTokenProblem(fault)]);
  chmodSync(file, 0o600);
  log?.warn('admin_token_restricted', { problem: fault.problem, note: 'it has mode 600 now' });
}

export const adminTokenProblem = ({ problem }: AdminTokenFault): string =>
  `admin.tokenFile: ${problem}; run chmod 600, and replace the token if it may have been read`;
