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
import { checkDataFile, corrupt } from './embedded-check.ts';
import { type Env, openEnv, RECORD_KINDS, type TableName } from './embedded-env.ts';
import { filesIn, prepareFolder, syncFolder, takeLock, unavailable, writeMarker } from './embedded-folder.ts';
import { unseal } from './embedded-records.ts';
import { STAMP, unpack } from './embedded-revocations.ts';
import { revocationOf } from './revocation-rules.ts';

export interface ExportedRecord {
  readonly kind: TableName;
  readonly id: string;
  readonly record: unknown;
  readonly keepUntil: Epoch;
}

const PAGE = 500;

/** Everything of these kinds that has not ended, in small pages: others go on reading and writing meanwhile. */
export async function* exportRecords(
  env: Env,
  now: () => Epoch,
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
          const { record, keepUntil } = unseal(kind, value);
          if (now() < keepUntil) yield { kind, id: key, record, keepUntil };
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

/** A consistent copy while the store runs. It appears whole or not at all, mode 0600, and replaces nothing. */
export async function backup(env: Env, toFile: string): Promise<void> {
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
    fsync(copy);
    linkSync(copy, target);
    syncFolder(dirname(target));
  } catch (error) {
    throw error instanceof Fault ? error : unavailable(`the backup to ${target} failed`, error);
  } finally {
    rmSync(room, { recursive: true, force: true });
  }
}

/**
 * Puts a backup in place of a store that does not exist yet. The copy is checked to the last page and record
 * before it counts; on any trouble the folder stays without a store. Returns how many records it holds.
 */
export async function restoreEmbedded(options: {
  readonly from: string;
  readonly path: string;
}): Promise<{ readonly records: number }> {
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
      checkDataFile(trial.data, true);
      const records = await countReadable(trial);
      fsync(trial.data);
      renameSync(trial.data, files.data);
      syncFolder(files.folder);
      writeMarker(files);
      return { records };
    } finally {
      rmSync(room, { recursive: true, force: true });
    }
  } catch (error) {
    throw error instanceof Fault ? error : unavailable(`cannot restore into ${files.folder}`, error);
  } finally {
    unlock();
  }
}

export interface OpenedBackup {
  records(...kinds: readonly TableName[]): AsyncIterable<ExportedRecord>;
  close(): Promise<void>;
}

/** A backup to read from. The file itself stays untouched: it is read from a copy that is checked to its last page. */
export async function openBackup(file: string, now: () => Epoch): Promise<OpenedBackup> {
  const from = resolve(file);
  if (!existsSync(from)) throw unavailable(`there is no backup ${from}`);
  const room = mkdtempSync(join(tmpdir(), 'gatehouse-move-'));
  const remove = (): void => rmSync(room, { recursive: true, force: true });
  try {
    const trial = filesIn(room);
    copyFileSync(from, trial.data, constants.COPYFILE_EXCL | constants.COPYFILE_FICLONE);
    chmodSync(trial.data, 0o600);
    checkDataFile(trial.data, true);
    const env = openEnv(trial, 2 ** 40);
    return {
      records: (...kinds) => exportRecords(env, now, kinds),
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

async function countReadable(trial: ReturnType<typeof filesIn>): Promise<number> {
  const env = openEnv(trial, 2 ** 40);
  try {
    let records = 0;
    for await (const _ of exportRecords(env, () => 0)) records += 1;
    return records;
  } catch (error) {
    throw error instanceof Fault ? error : corrupt(trial.data, 'it cannot be read', error);
  } finally {
    await env.close();
  }
}
