import { randomBytes } from 'node:crypto';
import { mkdir, open, readFile, rename, rm, stat } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { setTimeout as pause } from 'node:timers/promises';
import { TemporaryTrouble } from './errors.ts';
import { isToken, type KeptGrant } from './grant.ts';
import { inTurn, type TokenKeep } from './keep.ts';

const VERSION = 1;
const WAIT_MS = 60_000;
const SQLITE_BUSY = 5;
/** Room for the next grant is taken on the disk before the old one is spent. */
const RESERVE = Buffer.alloc(32 * 1_024, ' ');

/** In a file of mode 0600, for any number of processes of one user on one machine. */
export function fileKeep(path: string): TokenKeep {
  const file = resolve(path);
  return {
    read: () => readGrant(file),
    exclusively: (work) =>
      turnsFor(file)(async () => {
        await mkdir(dirname(file), { recursive: true, mode: 0o700 });
        const unlock = await lock(`${file}.lock`);
        const draft = await reserve(file);
        try {
          return await work(await readGrant(file), (next) =>
            next === undefined ? rm(file, { force: true }) : draft.become(next),
          );
        } finally {
          await draft.forget();
          unlock();
        }
      }),
  };
}

/** A process may hold a lock once only: closing a second descriptor would drop the first one's lock (POSIX). */
const turns = new Map<string, ReturnType<typeof inTurn>>();
const turnsFor = (file: string): ReturnType<typeof inTurn> => {
  const found = turns.get(file) ?? inTurn();
  turns.set(file, found);
  return found;
};

async function readGrant(file: string): Promise<KeptGrant | undefined> {
  let text: string;
  try {
    const { mode } = await stat(file);
    if ((mode & 0o077) !== 0 && process.platform !== 'win32')
      throw new TypeError(
        `${file} can be read by others (mode ${(mode & 0o777).toString(8)}); run chmod 600, and sign in again if somebody may have read it`,
      );
    text = await readFile(file, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
  try {
    const { version, grant } = JSON.parse(text) as { readonly version: number; readonly grant: KeptGrant };
    if (version === VERSION && isGrant(grant)) return grant;
  } catch {
    // Told below, without its text.
  }
  throw new TypeError(`${file} is not a token file of this version; remove it and sign in again`);
}

const isGrant = (grant: Partial<Record<keyof KeptGrant, unknown>> | null | undefined): boolean =>
  isToken(grant?.accessToken) &&
  isToken(grant.refreshToken) &&
  typeof grant.service === 'string' &&
  [grant.obtained, grant.expires, grant.until].every((time) => Number.isFinite(time));

interface Draft {
  become(grant: KeptGrant): Promise<void>;
  forget(): Promise<void>;
}

async function reserve(file: string): Promise<Draft> {
  const draft = `${file}.${randomBytes(6).toString('hex')}.new`;
  const handle = await open(draft, 'wx', 0o600);
  let open_ = true;
  const shut = async (): Promise<void> => {
    if (!open_) return;
    open_ = false;
    await handle.close();
  };
  try {
    await handle.write(RESERVE, 0, RESERVE.length, 0);
    await handle.sync();
  } catch (error) {
    await shut();
    await rm(draft, { force: true });
    throw new TemporaryTrouble(`no room to keep the next token beside ${file}`, { cause: error });
  }
  return {
    async become(grant) {
      const text = Buffer.from(`${JSON.stringify({ version: VERSION, grant }, null, 2)}\n`);
      await handle.write(text, 0, text.length, 0);
      await handle.truncate(text.length);
      await handle.sync();
      await shut();
      await rename(draft, file);
    },
    async forget() {
      await shut();
      await rm(draft, { force: true });
    },
  };
}

/** The kernel's lock (fcntl, by way of SQLite): it ends with its process, however that ends. */
async function lock(path: string): Promise<() => void> {
  const deadline = performance.now() + WAIT_MS;
  for (;;) {
    const db = new DatabaseSync(path, { timeout: 0 });
    try {
      db.exec('PRAGMA journal_mode = OFF; BEGIN EXCLUSIVE');
      return () => db.close();
    } catch (error) {
      db.close();
      if ((error as { readonly errcode?: number }).errcode !== SQLITE_BUSY) throw error;
      if (performance.now() > deadline)
        throw new TemporaryTrouble(`another program holds ${path} for too long`, { cause: error });
    }
    await pause(20 + Math.random() * 60);
  }
}
