import { createHash } from 'node:crypto';
import { type FSWatcher, lstatSync, readFileSync, readlinkSync, statSync, watch } from 'node:fs';
import { dirname, isAbsolute, join, parse, resolve, sep } from 'node:path';

export interface FileWatchOptions {
  /** Events within this time are one change. */
  readonly debounceMs?: number;
  /** Interval of checks without an event. */
  readonly pollMs?: number;
  /** `onChange` failed, or a folder cannot be watched (polling still covers it). */
  readonly onError?: (error: unknown) => void;
}

type OnChange = (changed: readonly string[]) => void | Promise<void>;

const MAX_FOLDERS = 256;
/** Larger files (revocation lists) are compared by their metadata: reading them would block the event loop. */
const MAX_BYTES = 1_048_576;
const MAX_PATH_STEPS = 64;
/** Files that are written continuously are checked after this many debounce times. */
const MAX_DEBOUNCE_PERIODS = 10;

/**
 * Calls `onChange` with the files whose content has changed since the last check; calls do not overlap. Start watching a file
 * before reading it.
 *
 * Detects changes by writes, renames, deletion, and replaced symbolic links (ConfigMaps and Secrets in Kubernetes). Watches
 * folders, since a watch on a file follows its inode and misses replacements: each folder in which a component of the path
 * could be replaced. Polling covers missed events.
 */
export class FileWatch {
  readonly #onChange: OnChange;
  readonly #debounceMs: number;
  readonly #onError: (error: unknown) => void;
  readonly #digests = new Map<string, string>();
  readonly #watchers = new Map<string, FSWatcher>();
  readonly #poll: NodeJS.Timeout;
  #debounce: { readonly timer: NodeJS.Timeout; readonly startedAt: number } | undefined;
  #state: 'idle' | 'notifying' | 'closed' = 'idle';

  constructor(
    paths: readonly string[],
    onChange: OnChange,
    { debounceMs = 250, pollMs = 30_000, onError = () => {} }: FileWatchOptions = {},
  ) {
    this.#onChange = onChange;
    this.#debounceMs = debounceMs;
    this.#onError = onError;
    this.update(paths);
    this.#poll = setInterval(this.#check, pollMs).unref();
  }

  /** Replaces the list of files. The current content of added files is not reported. */
  update(paths: readonly string[]): void {
    if (this.#state === 'closed') return;
    const kept = new Set(paths.map((path) => resolve(path)));
    for (const path of this.#digests.keys()) if (!kept.has(path)) this.#digests.delete(path);
    for (const path of kept) if (!this.#digests.has(path)) this.#digests.set(path, computeDigest(path));
    this.#updateWatchers();
    // Detects changes between the digest and the watch.
    this.#scheduleCheck();
  }

  close(): void {
    this.#state = 'closed';
    clearTimeout(this.#debounce?.timer);
    clearInterval(this.#poll);
    for (const watcher of this.#watchers.values()) watcher.close();
    this.#watchers.clear();
  }

  #updateWatchers(): void {
    const wanted = new Map<string, string>();
    for (const path of this.#digests.keys())
      for (const folder of listFolders(path)) {
        // By inode as well: a replaced folder needs another watch.
        const key = getFolderKey(folder);
        if (key !== undefined && wanted.size < MAX_FOLDERS) wanted.set(key, folder);
      }
    for (const key of this.#watchers.keys()) if (!wanted.has(key)) this.#unwatch(key);
    for (const [key, folder] of wanted) if (!this.#watchers.has(key)) this.#watch(key, folder);
  }

  #watch(key: string, folder: string): void {
    try {
      const watcher = watch(folder, { persistent: false }, this.#scheduleCheck);
      watcher.on('error', (error) => {
        this.#unwatch(key);
        this.#onError(error);
      });
      this.#watchers.set(key, watcher);
    } catch (error) {
      this.#onError(error);
    }
  }

  #unwatch(key: string): void {
    this.#watchers.get(key)?.close();
    this.#watchers.delete(key);
  }

  readonly #scheduleCheck = (): void => {
    if (this.#state === 'closed') return;
    const now = performance.now();
    const startedAt = this.#debounce?.startedAt ?? now;
    if (now - startedAt > this.#debounceMs * MAX_DEBOUNCE_PERIODS) return;
    clearTimeout(this.#debounce?.timer);
    this.#debounce = { startedAt, timer: setTimeout(this.#check, this.#debounceMs).unref() };
  };

  readonly #check = (): void => {
    this.#debounce = undefined;
    if (this.#state === 'closed') return;
    if (this.#state === 'notifying') return this.#scheduleCheck();
    this.#updateWatchers();
    const changed: string[] = [];
    for (const [path, before] of this.#digests) {
      const digest = computeDigest(path);
      if (digest === before) continue;
      this.#digests.set(path, digest);
      changed.push(path);
    }
    if (changed.length === 0) return;
    this.#state = 'notifying';
    Promise.try(this.#onChange, changed)
      .catch(this.#onError)
      .finally(() => {
        if (this.#state === 'notifying') this.#state = 'idle';
      });
  };
}

function computeDigest(path: string): string {
  try {
    const stats = statSync(path, { bigint: true });
    const { dev, ino, size, mtimeNs, ctimeNs } = stats;
    // Reading a pipe would wait for its writer.
    if (size > MAX_BYTES || !stats.isFile()) return `unread ${dev} ${ino} ${size} ${mtimeNs} ${ctimeNs}`;
    return createHash('sha256').update(readFileSync(path)).digest('base64');
  } catch (error) {
    return `unreadable ${(error as NodeJS.ErrnoException).code}`;
  }
}

function getFolderKey(folder: string): string | undefined {
  try {
    const { dev, ino } = statSync(folder);
    return `${folder} ${dev} ${ino}`;
  } catch {
    return undefined;
  }
}

/** The folders of all symbolic links in the path, and of the file or the first missing component. */
function listFolders(path: string): ReadonlySet<string> {
  const folders = new Set<string>();
  const { root } = parse(path);
  let current = root;
  const rest = path.slice(root.length).split(sep).filter(Boolean);
  for (let steps = 0; rest.length > 0 && steps < MAX_PATH_STEPS; steps += 1) {
    const name = rest.shift() ?? '';
    if (name === '..') {
      current = dirname(current);
      continue;
    }
    const next = join(current, name);
    const link = readLink(next);
    if (link === 'missing' || (link === undefined && rest.length === 0)) return folders.add(current);
    if (link === undefined) {
      current = next;
      continue;
    }
    folders.add(current);
    if (isAbsolute(link.target)) current = parse(link.target).root;
    rest.unshift(
      ...link.target
        .slice(isAbsolute(link.target) ? current.length : 0)
        .split(sep)
        .filter((part) => part !== '' && part !== '.'),
    );
  }
  return folders.add(dirname(path));
}

/** Undefined if the path exists and is not a symbolic link. */
function readLink(path: string): { readonly target: string } | 'missing' | undefined {
  try {
    return lstatSync(path).isSymbolicLink() ? { target: readlinkSync(path) } : undefined;
  } catch {
    return 'missing';
  }
}
