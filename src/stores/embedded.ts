import type { DeviceRequest } from '../domain/device-request.ts';
import type { Epoch } from '../domain/epoch.ts';
import type { Grant } from '../domain/grant.ts';
import { Fault } from '../ports/fault.ts';
import type { RecordAuthenticator } from '../ports/record-authenticator.ts';
import type { Store, UserCodeEntry } from '../ports/store.ts';
import { backup, type ExportedRecord, exportRecords } from './embedded-backup.ts';
import { checkDataFile } from './embedded-check.ts';
import { type Env, openEnv } from './embedded-env.ts';
import {
  filesIn,
  prepareFolder,
  requireOpened,
  type StoreFiles,
  stateOf,
  takeLock,
  writeMarker,
} from './embedded-folder.ts';
import { embeddedGrantIndex, indexHolders } from './embedded-grant-index.ts';
import { embeddedRecords, firstVersion } from './embedded-records.ts';
import { embeddedRevocations } from './embedded-revocations.ts';
import { patientClock, sweep } from './embedded-sweep.ts';

export { type ExportedRecord, restoreEmbedded } from './embedded-backup.ts';

export interface EmbeddedOptions {
  readonly path: string;
  /** Most the records may take up on disk. */
  readonly mapSize: number;
  /** One owner holds the lock and sweeps; workers of the same gatehouse share its store. `alone`: an owner without workers. */
  readonly role: 'alone' | 'owner' | 'worker';
  readonly now: () => Epoch;
  readonly authenticator: RecordAuthenticator;
  /** What went wrong in the background, for the log. */
  readonly onFault?: (fault: Fault) => void;
}

export interface EmbeddedStore extends Store {
  /** What was set right at opening and is worth a line in the log, such as file modes. */
  readonly notices: readonly string[];
  backup(toFile: string): Promise<void>;
  /** Removes what has ended; returns how many. Runs by itself in the owner. */
  sweep(): Promise<number>;
  /** Everything that has not ended, for moving to another store. */
  exportRecords(): AsyncIterable<ExportedRecord>;
}

const SWEEP_EVERY_MS = 10_000;

/** The single-machine store: LMDB, in a folder of its own, shared by the worker processes. */
export async function openEmbedded(options: EmbeddedOptions): Promise<EmbeddedStore> {
  const { now, authenticator } = options;
  const files = filesIn(options.path);
  const { notices, unlock } = options.role === 'worker' ? joinOwner(files) : becomeOwner(files);
  let env: Env;
  try {
    env = openEnv(files, options.mapSize);
    if (options.role !== 'worker') writeMarker(files);
  } catch (error) {
    unlock();
    throw error;
  }

  let closing = false;
  const sweeping = sweeper(env, options, () => closing);
  // In the background: until it is done, grants are found by looking at each.
  const indexing =
    options.role !== 'worker'
      ? indexHolders(env, () => closing).catch((error: unknown) => options.onFault?.(asFault(error)))
      : undefined;
  return {
    notices,
    grants: embeddedRecords<Grant>(env, 'grants', now, authenticator),
    grantIndex: embeddedGrantIndex(env, now, authenticator),
    devices: embeddedRecords<DeviceRequest>(env, 'devices', now, authenticator),
    userCodes: embeddedRecords<UserCodeEntry>(env, 'userCodes', now, authenticator),
    notes: embeddedRecords<Readonly<Record<string, string>>>(env, 'notes', now, authenticator),
    revocations: embeddedRevocations(env, now, options.role === 'alone'),
    isEmpty: async () =>
      env.fresh(() => {
        for (const table of [env.tables.grants, env.tables.devices])
          for (const _ of table.getKeys({ limit: 1 })) return false;
        return true;
      }),
    // What can be read has been flushed.
    settled: async () => {},
    probe: pulse(env),
    backup: (toFile) => backup(env, toFile, authenticator),
    sweep: sweeping.now,
    exportRecords: () => exportRecords(env, now, authenticator),
    async close() {
      if (closing) return;
      closing = true;
      await sweeping.stop();
      await indexing;
      await env.close();
      unlock();
    },
  };
}

interface Entry {
  readonly notices: readonly string[];
  readonly unlock: () => void;
}

function becomeOwner(files: StoreFiles): Entry {
  const notices = prepareFolder(files);
  const unlock = takeLock(files);
  try {
    if (stateOf(files) === 'existing') checkDataFile(files.data);
    return { notices, unlock };
  } catch (error) {
    unlock();
    throw error;
  }
}

function joinOwner(files: StoreFiles): Entry {
  requireOpened(files);
  return { notices: [], unlock: () => {} };
}

function sweeper(
  env: Env,
  { role, now, onFault }: EmbeddedOptions,
  isClosing: () => boolean,
): { readonly now: () => Promise<number>; readonly stop: () => Promise<void> } {
  let running: Promise<number> | undefined;
  const trusted = patientClock(now);
  const once = (clock = now): Promise<number> => {
    running ??= sweep(env, clock, isClosing).finally(() => {
      running = undefined;
    });
    return running;
  };
  const inBackground = async (): Promise<void> => {
    try {
      // Slots of killed workers would keep old pages from being used again.
      env.root.readerCheck();
      await once(trusted);
    } catch (error) {
      onFault?.(asFault(error));
    }
  };
  const timer =
    role !== 'worker' ? setInterval(() => void inBackground(), SWEEP_EVERY_MS).unref() : undefined;
  return {
    now: () => once(),
    async stop() {
      clearInterval(timer);
      await running?.catch(() => 0);
    },
  };
}

const asFault = (error: unknown): Fault =>
  error instanceof Fault
    ? error
    : new Fault('store_unavailable', 'work in the background failed', { cause: error });

const PULSE_EVERY_MS = 1000;

/** Writes a few bytes for real, at most once a second; asked more often it gives the last answer. */
function pulse(env: Env): () => Promise<void> {
  let last: { readonly at: number; readonly answer: Promise<void> } | undefined;
  const beat = async (): Promise<void> => {
    await env.writes.write({
      purpose: 'new',
      bytes: 1000,
      change: () => env.pulse.put('pulse', Buffer.from([1]), firstVersion()),
    });
    env.requireRoom();
  };
  return () => {
    if (last === undefined || performance.now() - last.at >= PULSE_EVERY_MS) {
      last = { at: performance.now(), answer: beat() };
      // Whoever asked hears it; nobody may be left to.
      last.answer.catch(() => {});
    }
    return last.answer;
  };
}
