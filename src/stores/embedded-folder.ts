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
  writeSync,
} from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { Fault } from '../ports/fault.ts';
import { corrupt } from './embedded-check.ts';

/** Where the embedded store keeps its things. Other files may live in the folder too, such as the keys. */
export interface StoreFiles {
  readonly folder: string;
  readonly data: string;
  readonly readers: string;
  readonly lock: string;
  /** Written once the store exists, so that a data file that vanished is never taken for a new store. */
  readonly marker: string;
}

export function filesIn(path: string): StoreFiles {
  const folder = resolve(path);
  return {
    folder,
    data: join(folder, 'data.mdb'),
    readers: join(folder, 'data.mdb-lock'),
    lock: join(folder, 'lock.db'),
    marker: join(folder, 'store.json'),
  };
}

export const unavailable = (words: string, cause?: unknown): Fault =>
  new Fault('store_unavailable', words, { cause });

const codeOf = (error: unknown): string | undefined =>
  error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : undefined;

/** Why the file system said no, in words an operator can act on. */
function refusedBy(error: unknown, path: string): Fault {
  switch (codeOf(error)) {
    case 'EROFS':
      return unavailable(
        `${path} is on a read-only file system; the store needs a folder it can write to`,
        error,
      );
    case 'EACCES':
    case 'EPERM':
      return unavailable(
        `no permission for ${path}; the store's folder must belong to the user that runs gatehouse (uid ${process.geteuid?.()})`,
        error,
      );
    case 'ENOSPC':
    case 'EDQUOT':
      return new Fault('store_full', `no space left for ${path}`, { cause: error });
    case undefined:
    default:
      return unavailable(`cannot use ${path}: ${codeOf(error) ?? 'unknown error'}`, error);
  }
}

function onDisk<T>(path: string, act: () => T): T {
  try {
    return act();
  } catch (error) {
    throw error instanceof Fault ? error : refusedBy(error, path);
  }
}

const statOf = (path: string): Stats | undefined => lstatSync(path, { throwIfNoEntry: false });

/**
 * The folder, made when missing, and closed to others: it belongs to us, mode 0700, its files 0600. What we own
 * and others can read is tightened, and told; what others own is refused.
 */
export function prepareFolder(files: StoreFiles): readonly string[] {
  const { folder } = files;
  return onDisk(folder, () => {
    makeFolder(folder);
    const told: string[] = [];
    const isFolder = (stat: Stats): boolean => stat.isDirectory();
    const isFile = (stat: Stats): boolean => stat.isFile();
    tighten(folder, 0o700, isFolder, told);
    for (const file of [files.data, files.readers, files.lock, files.marker])
      tighten(file, 0o600, isFile, told);
    accessSync(folder, constants.W_OK);
    // Made here, so that it never exists with another mode. One that exists stays unopened: see `takeLock`.
    if (statOf(files.lock) === undefined) closeSync(openSync(files.lock, 'ax', 0o600));
    return told;
  });
}

function makeFolder(folder: string): void {
  try {
    mkdirSync(folder, { recursive: true, mode: 0o700 });
  } catch {
    // Node says ENOENT here for a read-only or full file system; one step at a time tells the real reason.
    const missing: string[] = [];
    for (let at = folder; statOf(at) === undefined && at !== dirname(at); at = dirname(at))
      missing.unshift(at);
    for (const step of missing) mkdirSync(step, { mode: 0o700 });
    if (missing.length === 0) throw unavailable(`${folder} is not a folder`);
  }
}

const LEAST_FREE_BYTES = 512 * 1024;

/** Is there too little space even for an empty store? */
export function isDiskFull(files: StoreFiles): boolean {
  const { bavail, bsize } = statfsSync(files.folder);
  return bavail * bsize < LEAST_FREE_BYTES;
}

function tighten(path: string, mode: number, isKind: (stat: Stats) => boolean, told: string[]): void {
  const stat = statOf(path);
  if (stat === undefined) return;
  if (!isKind(stat))
    throw unavailable(`${path} is not a plain ${mode === 0o700 ? 'folder' : 'file'}; refused`);
  if (stat.uid !== process.geteuid?.())
    throw unavailable(
      `${path} belongs to uid ${stat.uid}, and gatehouse runs as uid ${process.geteuid?.()}; give it to that user, or name a folder that gatehouse can make itself`,
    );
  const found = stat.mode & 0o777;
  if ((found & ~mode) === 0) return;
  chmodSync(path, mode);
  told.push(
    `${path} had mode ${found.toString(8)} and could be reached by others; it has ${mode.toString(8)} now`,
  );
}

export type FolderState = 'new' | 'existing';

/** Asked before anything is created in the folder. */
export function stateOf(files: StoreFiles): FolderState {
  return onDisk(files.folder, () => {
    const bytes = statOf(files.data)?.size ?? 0;
    if (bytes > 0) return 'existing';
    if (statOf(files.marker) === undefined) return 'new';
    throw corrupt(files.data, statOf(files.data) === undefined ? 'it is missing' : 'it is empty');
  });
}

export function writeMarker(files: StoreFiles): void {
  if (statOf(files.marker) !== undefined) return;
  onDisk(files.marker, () => {
    const fresh = `${files.marker}.new`;
    const fd = openSync(fresh, 'w', 0o600);
    writeSync(fd, `${JSON.stringify({ store: 'gatehouse', format: 1 })}\n`);
    fsyncSync(fd);
    closeSync(fd);
    renameSync(fresh, files.marker);
    syncFolder(files.folder);
  });
}

export function syncFolder(folder: string): void {
  const fd = openSync(folder, 'r');
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}

/** A worker joins a store that its supervisor has opened. */
export function requireOpened(files: StoreFiles): void {
  if (statOf(files.marker) === undefined || statOf(files.data) === undefined)
    throw unavailable(`there is no store in ${files.folder}; its owner must open it first`);
}

/**
 * One owner at a time. The lock is the kernel's (fcntl, by way of SQLite), so it ends with the process however
 * that ends, and holds between containers of one machine. Nothing else may open and close `lock` in this
 * process: POSIX drops a process's locks on a file when any of its descriptors is closed.
 */
export function takeLock(files: StoreFiles): () => void {
  const folder = realpathSync(files.folder);
  if (ownedHere.has(folder)) throw locked(files);
  let db: DatabaseSync;
  try {
    db = new DatabaseSync(files.lock, { timeout: 0 });
  } catch (error) {
    throw unavailable(`cannot open the lock ${files.lock}`, error);
  }
  try {
    // Written once, so that taking the lock needs no space later, when the disk may be full.
    if (statOf(files.lock)?.size === 0) db.exec('PRAGMA user_version = 1');
    db.exec('PRAGMA journal_mode = OFF; BEGIN EXCLUSIVE');
  } catch (error) {
    db.close();
    const SQLITE_BUSY = 5;
    if (error instanceof Error && 'errcode' in error && error.errcode === SQLITE_BUSY)
      throw locked(files, error);
    if (isDiskFull(files))
      throw new Fault('store_full', `no space left for the store in ${files.folder}`, { cause: error });
    throw unavailable(`cannot lock ${files.lock}`, error);
  }
  ownedHere.add(folder);
  return () => {
    if (!ownedHere.delete(folder)) return;
    db.close();
  };
}

const ownedHere = new Set<string>();

const locked = (files: StoreFiles, cause?: unknown): Fault =>
  new Fault(
    'store_locked',
    `the store in ${files.folder} is in use by another gatehouse; stop that one, or give this one its own folder (store.path)`,
    { cause },
  );
