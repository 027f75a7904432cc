import { createPrivateKey, X509Certificate } from 'node:crypto';
import { chmodSync, existsSync, lstatSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { CommandError, EXIT } from '../command.ts';
import type { PemPair } from './certificate.ts';

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

/** NAME.pem and NAME-key.pem. */
export function writePair(folder: string, name: string, { pem, keyPem }: PemPair): void {
  writePrivateFile(join(folder, `${name}.pem`), pem);
  writePrivateFile(join(folder, `${name}-key.pem`), keyPem);
}

export function readIfExists(file: string): string | undefined {
  refuseSymbolicLink(file);
  return existsSync(file) ? readFileSync(file, 'utf8') : undefined;
}

/** Names that client certificates of `gatehouse dev-ca` cannot have: the folder has these files. Some file systems ignore letter case. */
export const isReservedName = (name: string): boolean => /^(?:ca|server|crl|.*-key)$/i.test(name);

/** NAME.pem and NAME-key.pem; undefined if one is missing or unreadable, or if they do not match. */
export function readPair(folder: string, name: string) {
  const pem = readIfExists(join(folder, `${name}.pem`));
  const keyPem = readIfExists(join(folder, `${name}-key.pem`));
  if (pem === undefined || keyPem === undefined) return undefined;
  try {
    const [certificate, key] = [new X509Certificate(pem), createPrivateKey(keyPem)];
    return certificate.checkPrivateKey(key) ? { certificate, key, pem, keyPem } : undefined;
  } catch {
    return undefined;
  }
}
