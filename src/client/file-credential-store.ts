import { randomBytes } from 'node:crypto';
import { mkdir, open, readFile, rename, rm, stat } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as pause } from 'node:timers/promises';
import { type CredentialStore, createMutex } from './credential-store.ts';
import { ServiceUnavailableError } from './errors.ts';
import { isToken, type StoredGrant } from './grant.ts';

const VERSION = 1;
const LOCK_TIMEOUT_MS = 60_000;
const SQLITE_BUSY = 5;
/** Disk space for the next grant is reserved before the refresh token is used. */
const PLACEHOLDER = Buffer.alloc(32 * 1_024, ' ');

/** Stores the grant in a file with mode 0600, which the processes of one user on one machine share. */
export function fileCredentialStore(path: string): CredentialStore {
  const file = resolve(path);
  return {
    read: () => readGrant(file),
    withLock: (work) =>
      getMutex(file)(async () => {
        await mkdir(dirname(file), { recursive: true, mode: 0o700 });
        const unlock = await lock(`${file}.lock`);
        const pendingFile = await createPendingFile(file);
        try {
          return await work(await readGrant(file), (next) =>
            next === undefined ? rm(file, { force: true }) : pendingFile.commit(next),
          );
        } finally {
          await pendingFile.discard();
          unlock();
        }
      }),
  };
}

/** One lock per process: closing another descriptor of the file would release it (POSIX). */
const mutexes = new Map<string, ReturnType<typeof createMutex>>();
const getMutex = (file: string): ReturnType<typeof createMutex> => {
  const mutex = mutexes.get(file) ?? createMutex();
  mutexes.set(file, mutex);
  return mutex;
};

async function readGrant(file: string): Promise<StoredGrant | undefined> {
  let text: string;
  try {
    const { mode } = await stat(file);
    if ((mode & 0o077) !== 0 && process.platform !== 'win32')
      throw new TypeError(
        `${file} can be read by others (mode ${(mode & 0o777).toString(8)}); run chmod 600, and sign in again if others may have read it`,
      );
    text = await readFile(file, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
  try {
    const { version, grant } = JSON.parse(text) as { readonly version: number; readonly grant: StoredGrant };
    if (version === VERSION && isStoredGrant(grant)) return grant;
  } catch {
    // Reported below, without the content of the file.
  }
  throw new TypeError(`${file} is not a token file of this version; remove it and sign in again`);
}

const isStoredGrant = (grant: Partial<Record<keyof StoredGrant, unknown>> | null | undefined): boolean =>
  isToken(grant?.accessToken) &&
  (grant.refreshToken === undefined || isToken(grant.refreshToken)) &&
  typeof grant.service === 'string' &&
  [grant.obtained, grant.expires, grant.until].every((time) => Number.isFinite(time));

async function createPendingFile(file: string) {
  const pendingPath = `${file}.${randomBytes(6).toString('hex')}.new`;
  const handle = await open(pendingPath, 'wx', 0o600);
  const discard = async (): Promise<void> => {
    // The handle may be closed already, which is no error.
    await handle.close();
    await rm(pendingPath, { force: true });
  };
  try {
    await handle.write(PLACEHOLDER, 0, PLACEHOLDER.length, 0);
    await handle.sync();
  } catch (error) {
    await discard();
    throw new ServiceUnavailableError(`no disk space to store the next token beside ${file}`, { cause: error });
  }
  return {
    async commit(grant: StoredGrant): Promise<void> {
      const text = Buffer.from(`${JSON.stringify({ version: VERSION, grant }, null, 2)}\n`);
      await handle.write(text, 0, text.length, 0);
      await handle.truncate(text.length);
      await handle.sync();
      await handle.close();
      await rename(pendingPath, file);
    },
    discard,
  };
}

/** Takes a lock of the kernel (fcntl, through SQLite), which is released when the process ends. */
async function lock(path: string): Promise<() => void> {
  const deadline = performance.now() + LOCK_TIMEOUT_MS;
  for (;;) {
    const db = new DatabaseSync(path, { timeout: 0 });
    try {
      db.exec('PRAGMA journal_mode = OFF; BEGIN EXCLUSIVE');
      return () => db.close();
    } catch (error) {
      db.close();
      if ((error as { readonly errcode?: number }).errcode !== SQLITE_BUSY) throw error;
      if (performance.now() > deadline)
        throw new ServiceUnavailableError(`another process has locked ${path} for too long`, { cause: error });
    }
    await pause(20 + Math.random() * 60);
  }
}
