import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

export interface TempFolder {
  readonly path: string;
  readonly file: (name: string) => string;
  /** Returns the path of the file. */
  readonly write: (name: string, content: string | Buffer) => string;
  readonly remove: () => void;
}

export function tempFolder(name = 'test'): TempFolder {
  const path = mkdtempSync(join(tmpdir(), `gatehouse-${name}-`));
  const file = (entry: string): string => join(path, entry);
  return {
    path,
    file,
    write(entry, content) {
      mkdirSync(dirname(file(entry)), { recursive: true });
      writeFileSync(file(entry), content, { mode: 0o600 });
      return file(entry);
    },
    // A killed process may create another file while the folder is being removed.
    remove: () => rmSync(path, { recursive: true, force: true, maxRetries: 5 }),
  };
}
