import type { DeviceRequest } from '../../domain/device-request.ts';
import type { Epoch, Grant } from '../../domain/grant.ts';
import { singleFlight } from '../../lib/promises.ts';
import { Fault, type FaultCode } from '../../ports/fault.ts';
import type { ReportProgress } from '../../ports/progress.ts';
import type { RecordAuthenticator } from '../../ports/record-authenticator.ts';
import type { Note, Store, UserCodeEntry } from '../../ports/store.ts';
import { createBackup, type ExportedRecord, exportRecords } from './backup.ts';
import { checkDataFile } from './check-data-file.ts';
import { type Env, type ExpiryKey, openEnv, startAfter } from './env.ts';
import {
  acquireLock,
  getFolderState,
  prepareFolder,
  requireExistingStore,
  resolveStoreFiles,
  toFault,
  writeMarker,
} from './folder.ts';
import {
  createEmbeddedGrantIndex,
  createEmbeddedRecords,
  createInitialVersion,
  getIdentityIndexKey,
  parseRecord,
} from './records.ts';
import { createEmbeddedRevocations, unpack } from './revocations.ts';

interface EmbeddedStoreOptions {
  readonly path: string;
  /** Maximum size of the records on disk, in bytes. */
  readonly mapSize: number;
  /** The owner holds the lock and sweeps; its workers share the store. `standalone`: an owner without workers. */
  readonly role: 'standalone' | 'owner' | 'worker';
  readonly now: () => Epoch;
  readonly authenticator: RecordAuthenticator;
  /** Faults in the background. */
  readonly onFault?: (fault: Fault) => void;
}

export interface EmbeddedStore extends Store {
  /** Changes made at opening, such as file modes, for the log. */
  readonly notices: readonly string[];
  backup(toFile: string, report?: ReportProgress): Promise<void>;
  /** Removes expired records; returns how many. The owner also runs it on a timer. */
  sweep(): Promise<number>;
  /** All unexpired records, for migration to another store. */
  exportRecords(): AsyncIterable<ExportedRecord>;
}

const SWEEP_INTERVAL_MS = 10_000;

/** The store of a single machine: LMDB, shared by the worker processes. */
export async function openEmbeddedStore(options: EmbeddedStoreOptions): Promise<EmbeddedStore> {
  const { now, authenticator, role } = options;
  const { notices, env, unlock } = await openFolder(options);
  let closing = false;
  const reportFault = (error: unknown): void =>
    options.onFault?.(toFault(error, 'a background task of the store failed'));
  const backgroundSweep = startSweeper(env, options, () => closing, reportFault);
  return {
    notices,
    grants: createEmbeddedRecords<Grant>(env, 'grants', now, authenticator),
    grantIndex: createEmbeddedGrantIndex(env, now, authenticator),
    devices: createEmbeddedRecords<DeviceRequest>(env, 'devices', now, authenticator),
    userCodes: createEmbeddedRecords<UserCodeEntry>(env, 'userCodes', now, authenticator),
    notes: createEmbeddedRecords<Note>(env, 'notes', now, authenticator),
    revocations: createEmbeddedRevocations(env, now, role === 'standalone'),
    isEmpty: async () =>
      env.readFresh(() => {
        for (const table of [env.tables.grants, env.tables.devices])
          for (const _ of table.getKeys({ limit: 1 })) return false;
        return true;
      }),
    // Only flushed writes can be read.
    waitUntilDurable: async () => {},
    probe: createProbe(env),
    backup: (toFile, report) => createBackup(env, toFile, authenticator, report),
    sweep: backgroundSweep.runNow,
    exportRecords: () => exportRecords(env, now, authenticator),
    async close() {
      if (closing) return;
      closing = true;
      await backgroundSweep.stop();
      await env.close();
      unlock();
    },
  };
}

/** Prepares and locks the folder, and opens the data file. */
async function openFolder({ path, role, mapSize }: EmbeddedStoreOptions) {
  const files = resolveStoreFiles(path);
  if (role === 'worker') {
    requireExistingStore(files);
    return { notices: [], env: openEnv(files, mapSize), unlock: () => {} };
  }
  const notices = prepareFolder(files);
  const unlock = acquireLock(files);
  let env: Env | undefined;
  try {
    if (getFolderState(files) === 'existing') checkDataFile(files.data);
    env = openEnv(files, mapSize);
    writeMarker(files);
    return { notices, env, unlock };
  } catch (error) {
    await env?.close();
    unlock();
    throw error;
  }
}

function startSweeper(
  env: Env,
  { role, now }: EmbeddedStoreOptions,
  isClosing: () => boolean,
  reportFault: (error: unknown) => void,
) {
  const slewedClock = createSlewedClock(now);
  const run = singleFlight((clock: () => Epoch) => sweep(env, clock, isClosing));
  const sweepInBackground = async (): Promise<void> => {
    try {
      // Reader slots of killed workers would prevent the reuse of old pages.
      env.root.readerCheck();
      await run(slewedClock);
    } catch (error) {
      reportFault(error);
    }
  };
  const timer = role !== 'worker' ? setInterval(() => void sweepInBackground(), SWEEP_INTERVAL_MS).unref() : undefined;
  return {
    runNow: () => run(now),
    /** Resolves when a running sweep has noticed `isClosing`. */
    async stop(): Promise<void> {
      clearInterval(timer);
      await run(now).catch(() => 0);
    },
  };
}

const PROBE_INTERVAL_MS = 1000;

/** Writes a few bytes, at most once a second; in between it returns the last result. */
function createProbe(env: Env): () => Promise<void> {
  let last: { readonly at: number; readonly result: Promise<void> } | undefined;
  const writeProbe = async (): Promise<void> => {
    await env.writeQueue.write({
      purpose: 'new',
      bytes: 1000,
      change: () => env.probeTable.put('pulse', Buffer.from([1]), createInitialVersion()),
    });
    env.requireSpace();
  };
  return () => {
    if (last === undefined || performance.now() - last.at >= PROBE_INTERVAL_MS) {
      last = { at: performance.now(), result: writeProbe() };
      // The rejection is handled by the callers, if there are any left.
      last.result.catch(() => {});
    }
    return last.result;
  };
}

const BATCH_SIZE = 200;

/**
 * Removes expired records in the order of their expiry, in small batches that let other writes proceed. Returns how many.
 * Readers do not depend on it: they ignore expired records. An unreadable record is kept, and reported after the others
 * are removed.
 */
export async function sweep(env: Env, now: () => Epoch, isClosing: () => boolean): Promise<number> {
  let removed = 0;
  let size = BATCH_SIZE;
  let after: ExpiryKey | undefined;
  let unreadable: unknown;
  while (!isClosing()) {
    const due = env.readFresh(() => readDueKeys(env, now(), size, after));
    if (due.length === 0) break;
    const outcomes = await Promise.allSettled(due.map((key) => removeExpired(env, key)));
    removed += outcomes.filter((outcome) => outcome.status === 'fulfilled' && outcome.value).length;
    const failures = outcomes.filter((outcome) => outcome.status === 'rejected').map(({ reason }) => reason);
    unreadable ??= failures.find((reason) => hasCode(reason, 'store_record_unreadable'));
    const failure = failures.find((reason) => !hasCode(reason, 'store_record_unreadable'));
    if (failure === undefined) after = due.at(-1);
    else {
      // Removing needs some space too: try a smaller batch.
      if (!hasCode(failure, 'store_full') || size === 1) throw failure;
      size = Math.ceil(size / 4);
      await new Promise((resolve) => setTimeout(resolve, 150));
    }
    await new Promise(setImmediate);
  }
  if (unreadable !== undefined) throw unreadable;
  return removed;
}

const hasCode = (error: unknown, code: FaultCode): boolean => error instanceof Fault && error.code === code;

/** How much faster than the monotonic clock the time may advance, to catch up after a suspension. */
const MAX_CATCH_UP_RATE = 60;

/**
 * The time for sweeping. If the clock were a year ahead for a minute, all revocations would be swept, and revoked tokens
 * would be valid again once it is corrected; so this one follows `now` gradually.
 */
export function createSlewedClock(now: () => Epoch, monotonicMs: () => number = () => performance.now()): () => Epoch {
  let slewedTime = now();
  let lastReadMs = monotonicMs();
  return () => {
    const elapsed = (monotonicMs() - lastReadMs) / 1_000;
    lastReadMs += elapsed * 1_000;
    slewedTime = Math.min(now(), slewedTime + elapsed * MAX_CATCH_UP_RATE);
    return slewedTime;
  };
}

function readDueKeys(env: Env, at: Epoch, limit: number, after: ExpiryKey | undefined): readonly ExpiryKey[] {
  const due: ExpiryKey[] = [];
  for (const key of env.expiry.getKeys({ limit, ...startAfter(after) })) {
    if (key[0] > at) break;
    due.push(key);
  }
  return due;
}

/** True when a record was removed. Conditional on its version, so a record created meanwhile is kept. */
async function removeExpired(env: Env, key: ExpiryKey): Promise<boolean> {
  const [keepUntil, name, id] = key;
  const table = env.tables[name];
  const found = env.readFresh(() => table.getEntry(id));
  if (found === undefined) {
    await env.writeQueue.write({
      purpose: 'sweep',
      bytes: 0,
      change: () => table.ifNoExists(id, () => void env.expiry.remove(key)),
    });
    return false;
  }
  const stored = name === 'revocations' ? unpack(found.value) : parseRecord(name, id, found.value);
  const isUnchanged = stored.keepUntil === keepUntil;
  const indexKey = 'record' in stored ? getIdentityIndexKey(name, id, stored.record) : undefined;
  const done = await env.writeQueue.write({
    purpose: 'sweep',
    bytes: 0,
    change: () =>
      table.ifVersion(id, found.version ?? 0, () => {
        if (isUnchanged) void table.remove(id);
        if (isUnchanged && indexKey !== undefined) void env.identityIndex.remove(indexKey);
        void env.expiry.remove(key);
      }),
  });
  return done && isUnchanged;
}
