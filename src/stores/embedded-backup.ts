import {
  chmodSync,
  closeSync,
  constants,
  copyFileSync,
  existsSync,
  fsyncSync,
  linkSync,
  mkdtempSync,
  openSync,
  renameSync,
  rmSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import type { Epoch } from '../domain/epoch.ts';
import { Fault } from '../ports/fault.ts';
import type { RecordAuthenticator } from '../ports/record-authenticator.ts';
import { appendBackupMac, dropBackupMac, type MacState, takeBackupMac } from './embedded-backup-mac.ts';
import { checkDataFile, corrupt } from './embedded-check.ts';
import { type Env, openEnv, RECORD_KINDS, type TableName } from './embedded-env.ts';
import { filesIn, prepareFolder, syncFolder, takeLock, unavailable, writeMarker } from './embedded-folder.ts';
import { placeOf, unseal } from './embedded-records.ts';
import { STAMP, unpack } from './embedded-revocations.ts';
import { isOver } from './ended-record.ts';
import { revocationOf } from './revocation-rules.ts';

export interface ExportedRecord {
  readonly kind: TableName;
  readonly id: string;
  readonly record: unknown;
  readonly keepUntil: Epoch;
}

const PAGE = 500;

/**
 * Everything of these kinds that has not ended, in small pages: others go on reading and writing meanwhile. Records that
 * fail authentication are absent here too; without an authenticator all are given.
 */
export async function* exportRecords(
  env: Env,
  now: () => Epoch,
  authenticator: RecordAuthenticator | undefined,
  kinds: readonly TableName[] = [...RECORD_KINDS, 'revocations'],
): AsyncGenerator<ExportedRecord> {
  for (const kind of kinds) {
    let after: string | undefined;
    for (;;) {
      const page = env.fresh(() => [
        ...env.tables[kind].getRange({
          limit: PAGE,
          ...(after === undefined ? {} : { start: after, exclusiveStart: true }),
        }),
      ]);
      for (const { key, value } of page) {
        after = key;
        if (kind === 'revocations') {
          if (key === STAMP) continue;
          const entry = unpack(value);
          if (now() < entry.keepUntil)
            yield { kind, id: key, record: revocationOf(key, entry), keepUntil: entry.keepUntil };
        } else {
          const { record, keepUntil, json, hasMac } = unseal(kind, value);
          const at = now();
          if (at >= keepUntil) continue;
          const place = placeOf(kind, key);
          if (authenticator?.check(place, json, hasMac, isOver(record, at)) === 'refused') continue;
          yield { kind, id: key, record, keepUntil };
        }
      }
      if (page.length < PAGE) break;
      await new Promise(setImmediate);
    }
  }
}

const fsync = (file: string): void => {
  const fd = openSync(file, 'r+');
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
};

/** A consistent copy while the store runs, with a MAC. It appears whole or not at all, mode 0600, and replaces nothing. */
export async function backup(env: Env, toFile: string, authenticator: RecordAuthenticator): Promise<void> {
  const target = resolve(toFile);
  if (existsSync(target)) throw unavailable(`${target} exists already; a backup replaces nothing`);
  let room: string;
  try {
    room = mkdtempSync(join(dirname(target), '.gatehouse-backup-'));
  } catch (error) {
    throw unavailable(`cannot write a backup into ${dirname(target)}`, error);
  }
  try {
    const copy = join(room, 'copy');
    await env.root.backup(copy, true);
    chmodSync(copy, 0o600);
    await appendBackupMac(copy, authenticator);
    fsync(copy);
    linkSync(copy, target);
    syncFolder(dirname(target));
  } catch (error) {
    throw error instanceof Fault ? error : unavailable(`the backup to ${target} failed`, error);
  } finally {
    rmSync(room, { recursive: true, force: true });
  }
}

export interface RestoreOptions {
  readonly from: string;
  readonly path: string;
  /** Without one nothing can be verified, and the backup is restored whatever its MAC is. */
  readonly authenticator: RecordAuthenticator | undefined;
  /** Restores the backup whatever its MAC is. */
  readonly unauthenticated?: boolean;
}

export interface Restored {
  readonly records: number;
  /** How many of them fail authentication by themselves. */
  readonly refused: number;
  readonly mac: MacState;
}

/**
 * Puts a backup in place of a store that does not exist yet. Its MAC is verified, and the copy is checked to the last page and
 * record before it counts; on any trouble the folder stays without a store.
 */
export async function restoreEmbedded(options: RestoreOptions): Promise<Restored> {
  const { authenticator, unauthenticated = false } = options;
  const from = resolve(options.from);
  const files = filesIn(options.path);
  if (!existsSync(from)) throw unavailable(`there is no backup ${from}`);
  prepareFolder(files);
  const unlock = takeLock(files);
  try {
    if (existsSync(files.data) || existsSync(files.marker))
      throw unavailable(
        `there is a store in ${files.folder} already; restore into another folder, or move that one away`,
      );
    const room = mkdtempSync(join(files.folder, '.restore-'));
    try {
      const trial = filesIn(room);
      copyFileSync(from, trial.data, constants.COPYFILE_EXCL);
      chmodSync(trial.data, 0o600);
      const mac = await verified(trial.data, from, authenticator, unauthenticated);
      const records = await countReadable(trial, undefined);
      const authentic =
        authenticator === undefined ? records : await countReadable(trial, counting(authenticator));
      fsync(trial.data);
      renameSync(trial.data, files.data);
      syncFolder(files.folder);
      writeMarker(files);
      return { records, refused: records - authentic, mac };
    } finally {
      rmSync(room, { recursive: true, force: true });
    }
  } catch (error) {
    throw error instanceof Fault ? error : unavailable(`cannot restore into ${files.folder}`, error);
  } finally {
    unlock();
  }
}

export interface OpenBackupOptions {
  readonly now: () => Epoch;
  /** Of the records, and of the backup unless `unauthenticated`. */
  readonly authenticator: RecordAuthenticator;
  /** The MAC of the backup is not looked at. Its records are verified all the same. */
  readonly unauthenticated: boolean;
}

export interface OpenedBackup {
  readonly mac: MacState;
  records(...kinds: readonly TableName[]): AsyncIterable<ExportedRecord>;
  close(): Promise<void>;
}

/**
 * A backup to read from. The file itself stays untouched: it is read from a copy that is verified and checked to its last
 * page. `unauthenticated`: whatever its MAC is; its records are verified all the same.
 */
export async function openBackup(
  file: string,
  { now, authenticator, unauthenticated }: OpenBackupOptions,
): Promise<OpenedBackup> {
  const from = resolve(file);
  if (!existsSync(from)) throw unavailable(`there is no backup ${from}`);
  const room = mkdtempSync(join(tmpdir(), 'gatehouse-move-'));
  const remove = (): void => rmSync(room, { recursive: true, force: true });
  try {
    const trial = filesIn(room);
    copyFileSync(from, trial.data, constants.COPYFILE_EXCL | constants.COPYFILE_FICLONE);
    chmodSync(trial.data, 0o600);
    const mac = await verified(trial.data, from, authenticator, unauthenticated);
    const env = openEnv(trial, 2 ** 40);
    return {
      mac,
      records: (...kinds) => exportRecords(env, now, authenticator, kinds),
      async close() {
        await env.close();
        remove();
      },
    };
  } catch (error) {
    remove();
    throw error instanceof Fault ? error : unavailable(`cannot read the backup ${from}`, error);
  }
}

/** The data file alone, its MAC verified and removed, and every page of it checked. */
async function verified(
  copy: string,
  name: string,
  authenticator: RecordAuthenticator | undefined,
  unauthenticated: boolean,
): Promise<MacState> {
  let mac: MacState = 'right';
  if (authenticator === undefined || unauthenticated) mac = await dropBackupMac(copy, authenticator);
  else await takeBackupMac(copy, authenticator, name);
  checkDataFile(copy, true);
  return mac;
}

/** Only counts: a record whose key is not there is one more that is refused. */
const counting = (authenticator: RecordAuthenticator): RecordAuthenticator => ({
  ...authenticator,
  check(...record) {
    try {
      return authenticator.check(...record);
    } catch (error) {
      if (error instanceof Fault) return 'refused';
      throw error;
    }
  },
});

async function countReadable(
  trial: ReturnType<typeof filesIn>,
  authenticator: RecordAuthenticator | undefined,
): Promise<number> {
  const env = openEnv(trial, 2 ** 40);
  try {
    let records = 0;
    for await (const _ of exportRecords(env, () => 0, authenticator)) records += 1;
    return records;
  } catch (error) {
    throw error instanceof Fault ? error : corrupt(trial.data, 'it cannot be read', error);
  } finally {
    await env.close();
  }
}
