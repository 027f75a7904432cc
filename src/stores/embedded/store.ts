import type { DeviceRequest } from '../../domain/device-request.ts';
import type { Epoch } from '../../domain/epoch.ts';
import type { Grant } from '../../domain/grant.ts';
import { singleFlight } from '../../lib/promises.ts';
import type { Fault } from '../../ports/fault.ts';
import type { ReportProgress } from '../../ports/progress.ts';
import type { RecordAuthenticator } from '../../ports/record-authenticator.ts';
import type { Note, Store, UserCodeEntry } from '../../ports/store.ts';
import { createBackup, type ExportedRecord, exportRecords } from './backup.ts';
import { checkDataFile } from './check-data-file.ts';
import { type Env, openEnv } from './env.ts';
import {
  acquireLock,
  getFolderState,
  prepareFolder,
  requireExistingStore,
  resolveStoreFiles,
  toFault,
  writeMarker,
} from './folder.ts';
import { createEmbeddedGrantIndex } from './grant-index.ts';
import { createEmbeddedRecords, createInitialVersion } from './records.ts';
import { createEmbeddedRevocations } from './revocations.ts';
import { createSlewedClock, sweep } from './sweep.ts';

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
