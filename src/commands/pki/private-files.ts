import { chmodSync, existsSync, lstatSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { CommandError, EXIT } from '../command.ts';

/** Keys must not end up in, or be taken from, a place that someone else chose. */
export function refuseSymbolicLink(path: string): void {
  if (lstatSync(path, { throwIfNoEntry: false })?.isSymbolicLink() === true)
    throw new CommandError(
      `${path} is a symbolic link, which is not followed; delete it, or name the folder that it leads to`,
      EXIT.cannotCreate,
    );
}

/** Readable by the owner only, whatever the umask. */
export function createPrivateFolder(folder: string): void {
  refuseSymbolicLink(folder);
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

export function readIfExists(file: string): string | undefined {
  refuseSymbolicLink(file);
  return existsSync(file) ? readFileSync(file, 'utf8') : undefined;
}
