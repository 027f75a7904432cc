import { randomBytes } from 'node:crypto';
import { chmodSync, closeSync, mkdirSync, openSync, rmSync, statSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import type { Settings } from '../config/schema.ts';
import { StartError } from '../lib/start-error.ts';
import type { Logger } from '../observability/logger.ts';
import { isReadableByOthers } from '../tokens/keyring-file.ts';

export function ensureAdminTokens({ admin }: Settings, log: Pick<Logger, 'warn'>): void {
  ensureAdminToken(admin.tokenFile, log);
  if (admin.readOnlyTokenFile !== undefined) ensureAdminToken(admin.readOnlyTokenFile, log, 'admin.readOnlyTokenFile');
}

/** Creates a missing admin token with mode 0600. Throws when other users can read an existing one. */
export function ensureAdminToken(
  file: string,
  log?: Pick<Logger, 'warn'>,
  setting: AdminTokenSetting = 'admin.tokenFile',
): void {
  mkdirSync(dirname(file), { recursive: true, mode: 0o700 });
  // A start with a full disk leaves an empty file behind; an empty token would be no secret.
  if (statSync(file, { throwIfNoEntry: false })?.size === 0) rmSync(file);
  let fd: number;
  try {
    fd = openSync(file, 'wx', 0o600);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    return restrictFileMode(file, log, setting);
  }
  try {
    writeSync(fd, `${randomBytes(32).toString('base64url')}\n`);
  } finally {
    closeSync(fd);
  }
}

type AdminTokenFileProblem = { readonly kind: 'fatal' | 'fixable'; readonly problem: string };

/**
 * The same rule as for the key file, which permits Secrets mounted by a kubelet. A kubelet that applies `fsGroup` sets the
 * mode of our own file in a volume to 0660: that is fixable.
 */
export function checkAdminTokenFile(file: string): AdminTokenFileProblem | undefined {
  const stats = statSync(file, { throwIfNoEntry: false });
  if (stats === undefined || process.platform === 'win32' || !isReadableByOthers(file)) return undefined;
  const { mode, uid } = stats;
  const problem = `other users can read ${file} (mode ${(mode & 0o777).toString(8)})`;
  return { kind: uid === process.geteuid?.() && (mode & 0o007) === 0 ? 'fixable' : 'fatal', problem };
}

function restrictFileMode(file: string, log: Pick<Logger, 'warn'> | undefined, setting: AdminTokenSetting): void {
  const fileProblem = checkAdminTokenFile(file);
  if (fileProblem === undefined) return;
  if (fileProblem.kind === 'fatal') throw new StartError([formatAdminTokenProblem(fileProblem, setting)]);
  chmodSync(file, 0o600);
  log?.warn('admin_token_restricted', { problem: fileProblem.problem, note: 'its mode has been set to 600' });
}

export type AdminTokenSetting = 'admin.tokenFile' | 'admin.readOnlyTokenFile';

export const formatAdminTokenProblem = (
  { problem }: AdminTokenFileProblem,
  setting: AdminTokenSetting = 'admin.tokenFile',
): string => `${setting}: ${problem}; run chmod 600, and replace the token if it may have been read`;
