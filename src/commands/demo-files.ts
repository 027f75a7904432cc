import { chmodSync, existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';

/** The demo's folder and files are for its owner alone, whatever the umask says. */
export function makeFolder(folder: string): void {
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  chmodSync(folder, 0o700);
}

/** Beside and then renamed: a demo that is interrupted leaves the old file or the new one. */
export function writeOwn(file: string, content: string | Uint8Array): void {
  const beside = `${file}.new`;
  writeFileSync(beside, content, { mode: 0o600 });
  chmodSync(beside, 0o600);
  renameSync(beside, file);
}

export const readIfThere = (file: string): string | undefined =>
  existsSync(file) ? readFileSync(file, 'utf8') : undefined;
