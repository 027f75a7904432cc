import { createHash } from 'node:crypto';
import { type FSWatcher, lstatSync, readFileSync, readlinkSync, statSync, watch } from 'node:fs';
import { basename, dirname, isAbsolute, join, parse, resolve, sep } from 'node:path';

/**
 * Tells when the content of files has changed, however that came about: written in place, replaced by a rename,
 * deleted and back again, or swapped behind a symbolic link as Kubernetes does with ConfigMaps and Secrets.
 *
 * Folders are watched, not files: a watch on a file follows its inode and is deaf after the first replacement.
 * Every folder in which a step of the path (a link or the file) could be exchanged is watched, and the set is
 * looked up anew after every event. A slow look at everything catches what no event told.
 */
export interface Watch {
  /** From now on these files. Those that are new are taken as they are now. */
  update(paths: readonly string[]): void;
  close(): void;
}

export interface WatchOptions {
  /** Events this close together are one change. */
  readonly debounceMs?: number;
  /** How often everything is looked at without an event. */
  readonly pollMs?: number;
  /** `onChange` failed, or a folder cannot be watched (the slow look still covers it). */
  readonly onError?: (error: unknown) => void;
}

const MAX_FOLDERS = 256;
/** Larger files (revocation lists) are not read to see whether they changed: that would stop the event loop at every look. */
const MAX_BYTES = 1_048_576;
const MAX_STEPS = 64;
/** A file that is written to without a pause is still looked at after this many debounce times. */
const PATIENCE = 10;

/**
 * Calls `onChange` with the files whose content differs from when it was last looked at; never twice at once. To
 * miss nothing, start to watch a file before reading it.
 */
export function watchFiles(
  paths: readonly string[],
  onChange: (changed: readonly string[]) => void | Promise<void>,
  { debounceMs = 250, pollMs = 30_000, onError = () => {} }: WatchOptions = {},
): Watch {
  const digests = new Map<string, string>();
  const watchers = new Map<string, FSWatcher>();
  let closed = false;
  let running = false;
  let timer: NodeJS.Timeout | undefined;
  let firstEvent = 0;

  const follow = (): void => {
    const wanted = new Map<string, string>();
    for (const path of digests.keys())
      for (const folder of foldersOf(path)) {
        // Another folder under the same name needs another watch.
        const key = identity(folder);
        if (key !== undefined && wanted.size < MAX_FOLDERS) wanted.set(key, folder);
      }
    for (const [key, watcher] of watchers)
      if (!wanted.has(key)) {
        watchers.delete(key);
        watcher.close();
      }
    for (const [key, folder] of wanted) if (!watchers.has(key)) open(key, folder);
  };

  const open = (key: string, folder: string): void => {
    try {
      const watcher = watch(folder, { persistent: false }, event);
      watcher.on('error', (error) => {
        watchers.delete(key);
        watcher.close();
        onError(error);
      });
      watchers.set(key, watcher);
    } catch (error) {
      onError(error);
    }
  };

  const event = (): void => {
    if (closed) return;
    const now = performance.now();
    if (timer === undefined) firstEvent = now;
    else if (now - firstEvent > debounceMs * PATIENCE) return;
    clearTimeout(timer);
    timer = setTimeout(look, debounceMs).unref();
  };

  const look = (): void => {
    timer = undefined;
    if (closed) return;
    if (running) return event();
    follow();
    const changed: string[] = [];
    for (const [path, before] of digests) {
      const digest = digestOf(path);
      if (digest === before) continue;
      digests.set(path, digest);
      changed.push(path);
    }
    if (changed.length === 0) return;
    running = true;
    Promise.try(onChange, changed)
      .catch(onError)
      .finally(() => {
        running = false;
      });
  };

  const update = (next: readonly string[]): void => {
    if (closed) return;
    const kept = new Set(next.map((path) => resolve(path)));
    for (const path of digests.keys()) if (!kept.has(path)) digests.delete(path);
    for (const path of kept) if (!digests.has(path)) digests.set(path, digestOf(path));
    follow();
    // What changed between the first look and the first watch.
    event();
  };

  update(paths);
  const poll = setInterval(look, pollMs).unref();
  return {
    update,
    close() {
      closed = true;
      clearTimeout(timer);
      clearInterval(poll);
      for (const watcher of watchers.values()) watcher.close();
      watchers.clear();
    },
  };
}

function digestOf(path: string): string {
  try {
    const found = statSync(path, { bigint: true });
    const { dev, ino, size, mtimeNs, ctimeNs } = found;
    // Nor is a pipe: that would wait for its writer.
    if (size > MAX_BYTES || !found.isFile()) return `unread ${dev} ${ino} ${size} ${mtimeNs} ${ctimeNs}`;
    return createHash('sha256').update(readFileSync(path)).digest('base64');
  } catch (error) {
    return `unreadable ${(error as NodeJS.ErrnoException).code}`;
  }
}

function identity(folder: string): string | undefined {
  try {
    const { dev, ino } = statSync(folder);
    return `${folder} ${dev} ${ino}`;
  } catch {
    return undefined;
  }
}

/** The folders in which a step towards the file could be exchanged: those of links on the way, and of its end. */
function foldersOf(path: string): ReadonlySet<string> {
  const folders = new Set<string>();
  const { root } = parse(path);
  let here = root;
  const rest = path.slice(root.length).split(sep).filter(Boolean);
  for (let steps = 0; rest.length > 0 && steps < MAX_STEPS; steps += 1) {
    const name = rest.shift() ?? '';
    if (name === '..') {
      here = dirname(here);
      continue;
    }
    const next = join(here, name);
    const target = linkTarget(next);
    if (target === 'missing' || (target === undefined && rest.length === 0)) {
      folders.add(here);
      return folders;
    }
    if (target === undefined) {
      here = next;
      continue;
    }
    folders.add(here);
    if (isAbsolute(target.to)) here = parse(target.to).root;
    rest.unshift(
      ...target.to
        .slice(isAbsolute(target.to) ? here.length : 0)
        .split(sep)
        .filter((part) => part !== '' && part !== '.'),
    );
  }
  folders.add(dirname(path));
  return folders;
}

/** Where a link leads; undefined when it is none. */
function linkTarget(path: string): { readonly to: string } | 'missing' | undefined {
  try {
    return lstatSync(path).isSymbolicLink() ? { to: readlinkSync(path) } : undefined;
  } catch {
    return basename(path) === '' ? undefined : 'missing';
  }
}
