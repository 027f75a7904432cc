import { chmodSync, existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';

/** Readable by the owner only, whatever the umask. */
export function createPrivateFolder(folder: string): void {
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  chmodSync(folder, 0o700);
}

/** Atomic: writes a temporary file and renames it. A symbolic link in its place is removed, not followed. */
export function writePrivateFile(file: string, content: string | Uint8Array): void {
  const temporary = `${file}.new`;
  rmSync(temporary, { force: true });
  writeFileSync(temporary, content, { mode: 0o600, flag: 'wx' });
  chmodSync(temporary, 0o600);
  renameSync(temporary, file);
}

export const readIfExists = (file: string): string | undefined =>
  existsSync(file) ? readFileSync(file, 'utf8') : undefined;
