import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/**
 * All printable strings in a store's files, for tests that search it for secrets. The store must be closed or belong to
 * another process: reading the lock file here would release a lock that this process holds on it.
 */
export function dumpStrings(path: string, except: readonly string[] = []): readonly string[] {
  return readdirSync(path, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile() && !entry.name.startsWith('lock.db') && !except.includes(entry.name))
    .flatMap((entry) => printable(readFileSync(join(entry.parentPath, entry.name))));
}

const printable = (bytes: Buffer): readonly string[] => bytes.toString('latin1').match(/[\x20-\x7e]{6,}/g) ?? [];
