import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/**
 * Everything printable in a store's files, for tests that look for secrets in it. For a store that is closed or
 * belongs to another process: reading the lock file here would drop a lock that this process holds on it.
 */
export function dumpStrings(path: string, except: readonly string[] = []): readonly string[] {
  return readdirSync(path, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile() && !entry.name.startsWith('lock.db') && !except.includes(entry.name))
    .flatMap((entry) => printable(readFileSync(join(entry.parentPath, entry.name))));
}

const printable = (bytes: Buffer): readonly string[] =>
  bytes.toString('latin1').match(/[\x20-\x7e]{6,}/g) ?? [];
