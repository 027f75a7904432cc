import { randomBytes } from 'node:crypto';
import { closeSync, mkdirSync, openSync, rmSync, statSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';

/** Makes the admin token when it is missing; readable by its owner only. */
export function ensureAdminToken(file: string): void {
  mkdirSync(dirname(file), { recursive: true, mode: 0o700 });
  // Left behind by a start on a full disk. An empty token is one that everybody knows.
  if (statSync(file, { throwIfNoEntry: false })?.size === 0) rmSync(file);
  let fd: number;
  try {
    fd = openSync(file, 'wx', 0o600);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return;
    throw error;
  }
  try {
    writeSync(fd, `${randomBytes(32).toString('base64url')}\n`);
  } finally {
    closeSync(fd);
  }
}
