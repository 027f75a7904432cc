import {
  accessSync,
  chmodSync,
  closeSync,
  constants,
  fsyncSync,
  lstatSync,
  mkdirSync,
  openSync,
  realpathSync,
  renameSync,
  type Stats,
  statfsSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { Fault, type FileProblem } from '../../ports/fault.ts';
import { corruptFault } from './check-data-file.ts';

/** The files of the store. Its folder may contain other files, such as the keys. */
export function resolveStoreFiles(path: string) {
  const folder = resolve(path);
  return {
    folder,
    data: join(folder, 'data.mdb'),
    lmdbLock: join(folder, 'data.mdb-lock'),
    ownerLock: join(folder, 'lock.db'),
    /** Written once the store exists, so that a missing data file is not mistaken for a new store. */
    marker: join(folder, 'store.json'),
  } as const;
}

export type StoreFiles = ReturnType<typeof resolveStoreFiles>;

export const unavailableFault = (message: string, cause?: unknown): Fault =>
  new Fault('store_unavailable', message, { cause });

/** A file that the user named in a command cannot be used. */
export const fileFault = (fileProblem: FileProblem, message: string, cause?: unknown): Fault =>
  new Fault('store_unavailable', message, { cause, fileProblem });

export const toFault = (error: unknown, message: string): Fault =>
  error instanceof Fault ? error : unavailableFault(message, error);

function toFileSystemFault(error: unknown, path: string): Fault {
  const code = error instanceof Error && 'code' in error ? String(error.code) : 'unknown error';
  if (code === 'ENOSPC' || code === 'EDQUOT')
    return new Fault('store_full', `no space left for ${path}`, { cause: error });
  if (code === 'EROFS')
    return unavailableFault(`${path} is on a read-only file system; store.path must be writable`, error);
  if (code === 'EACCES' || code === 'EPERM')
    return unavailableFault(
      `no permission for ${path}; the folder must be owned by the user that runs gatehouse (uid ${process.geteuid?.()})`,
      error,
    );
  return unavailableFault(`cannot use ${path}: ${code}`, error);
}

function withDiskFaults<T>(path: string, operation: () => T): T {
  try {
    return operation();
  } catch (error) {
    throw error instanceof Fault ? error : toFileSystemFault(error, path);
  }
}

const statIfExists = (path: string): Stats | undefined => lstatSync(path, { throwIfNoEntry: false });

/**
 * Creates the folder if it is missing, and restricts it to mode 0700 and its files to 0600; returns a notice for each change.
 * Rejects files that another user owns.
 */
export function prepareFolder(files: StoreFiles): readonly string[] {
  const { folder } = files;
  return withDiskFaults(folder, () => {
    createFolder(folder);
    const notices: string[] = [];
    restrictMode(folder, 0o700, notices);
    for (const file of [files.data, files.lmdbLock, files.ownerLock, files.marker]) restrictMode(file, 0o600, notices);
    accessSync(folder, constants.W_OK);
    // Created here, so that it never has another mode. An existing lock must not be opened: see `acquireLock`. Another
    // process may create it at the same time.
    if (statIfExists(files.ownerLock) === undefined) closeSync(openSync(files.ownerLock, 'a', 0o600));
    return notices;
  });
}

function createFolder(folder: string): void {
  try {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
  } catch {
    // Node reports ENOENT for a read-only or full file system; creating one level at a time gives the real error.
    const missing: string[] = [];
    for (let at = folder; statIfExists(at) === undefined && at !== dirname(at); at = dirname(at)) missing.unshift(at);
    for (const ancestor of missing) mkdirSync(ancestor, { mode: 0o700 });
    if (missing.length === 0) throw unavailableFault(`${folder} is not a folder`);
  }
}

const MIN_FREE_BYTES = 512 * 1024;

/** Too little space even for an empty store. */
export function isDiskFull(files: StoreFiles): boolean {
  const { bavail, bsize } = statfsSync(files.folder);
  return bavail * bsize < MIN_FREE_BYTES;
}

function restrictMode(path: string, mode: 0o600 | 0o700, notices: string[]): void {
  const stat = statIfExists(path);
  if (stat === undefined) return;
  const isFolder = mode === 0o700;
  if (isFolder ? !stat.isDirectory() : !stat.isFile())
    throw unavailableFault(`${path} is not a regular ${isFolder ? 'folder' : 'file'}`);
  if (stat.uid !== process.geteuid?.())
    throw unavailableFault(
      `${path} is owned by uid ${stat.uid}, but gatehouse runs as uid ${process.geteuid?.()}; change its owner, or set store.path to a folder that gatehouse can create`,
    );
  const currentMode = stat.mode & 0o777;
  if ((currentMode & ~mode) === 0) return;
  chmodSync(path, mode);
  notices.push(
    `${path} was accessible to other users (mode ${currentMode.toString(8)}); its mode is now ${mode.toString(8)}`,
  );
}

/** Called before anything is created in the folder. */
export function getFolderState(files: StoreFiles): 'new' | 'existing' {
  return withDiskFaults(files.folder, () => {
    const bytes = statIfExists(files.data)?.size ?? 0;
    if (bytes > 0) return 'existing';
    if (statIfExists(files.marker) === undefined) return 'new';
    throw corruptFault(files.data, statIfExists(files.data) === undefined ? 'it is missing' : 'it is empty');
  });
}

export function writeMarker(files: StoreFiles): void {
  if (statIfExists(files.marker) !== undefined) return;
  withDiskFaults(files.marker, () => {
    const temporaryFile = `${files.marker}.new`;
    writeFileSync(temporaryFile, `${JSON.stringify({ store: 'gatehouse', format: 1 })}\n`, {
      mode: 0o600,
      flush: true,
    });
    renameSync(temporaryFile, files.marker);
    syncPath(files.folder);
  });
}

/** Flushes a file or folder to disk. */
export function syncPath(path: string): void {
  const fd = openSync(path, 'r');
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}

/** Workers use the store that the supervisor has opened. */
export function requireExistingStore(files: StoreFiles): void {
  if (statIfExists(files.marker) === undefined || statIfExists(files.data) === undefined)
    throw fileFault('missing', `there is no store in ${files.folder}; start gatehouse first, which creates it`);
}

/**
 * Locks the store for one owner. It is a kernel lock (fcntl, through SQLite): it ends with the process, and applies between
 * containers of one machine. Nothing else in this process may open and close the lock file: POSIX drops a process's locks
 * on a file when any of its descriptors is closed.
 */
export function acquireLock(files: StoreFiles): () => void {
  const folder = realpathSync(files.folder);
  if (lockedFolders.has(folder)) throw lockedFault(files);
  let db: DatabaseSync;
  try {
    db = new DatabaseSync(files.ownerLock, { timeout: 0 });
  } catch (error) {
    throw unavailableFault(`cannot open the lock ${files.ownerLock}`, error);
  }
  try {
    // Written once, so that locking needs no space later, when the disk may be full.
    if (statIfExists(files.ownerLock)?.size === 0) db.exec('PRAGMA user_version = 1');
    db.exec('PRAGMA journal_mode = OFF; BEGIN EXCLUSIVE');
  } catch (error) {
    db.close();
    const SQLITE_BUSY = 5;
    if (error instanceof Error && 'errcode' in error && error.errcode === SQLITE_BUSY) throw lockedFault(files, error);
    if (isDiskFull(files))
      throw new Fault('store_full', `no space left for the store in ${files.folder}`, { cause: error });
    throw unavailableFault(`cannot lock ${files.ownerLock}`, error);
  }
  lockedFolders.add(folder);
  return () => {
    if (!lockedFolders.delete(folder)) return;
    db.close();
  };
}

const lockedFolders = new Set<string>();

const lockedFault = (files: StoreFiles, cause?: unknown): Fault =>
  new Fault(
    'store_locked',
    `the store in ${files.folder} is in use by another gatehouse process; stop it, or set store.path to another folder`,
    { cause },
  );
