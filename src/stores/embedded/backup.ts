import { chmodSync, constants, existsSync, linkSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { copyFile, type FileHandle, open } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import type { Epoch } from '../../domain/grant.ts';
import { isEqualConstantTime } from '../../lib/constant-time.ts';
import { Fault } from '../../ports/fault.ts';
import type { ReportProgress } from '../../ports/progress.ts';
import { type BackupMac, RECORD_KINDS, type RecordAuthenticator } from '../../ports/record-authenticator.ts';
import { checkRecord } from '../record-format.ts';
import { toRevocation } from '../revocation-rules.ts';
import { checkDataFile, corruptFault } from './check-data-file.ts';
import { type Env, openEnv, startAfter, type TableName } from './env.ts';
import {
  acquireLock,
  fileFault,
  prepareFolder,
  resolveStoreFiles,
  type StoreFiles,
  syncPath,
  toFault,
  writeMarker,
} from './folder.ts';
import { countEntries, parseRecord } from './records.ts';
import { LAST_NUMBER, unpack } from './revocations.ts';

export interface ExportedRecord {
  readonly kind: TableName;
  readonly id: string;
  readonly record: unknown;
  readonly keepUntil: Epoch;
}

const PAGE_SIZE = 500;

/** All unexpired, authentic records of these kinds, in small pages that let others read and write. */
export async function* exportRecords(
  env: Env,
  now: () => Epoch,
  authenticator: RecordAuthenticator,
  kinds: readonly TableName[] = [...RECORD_KINDS, 'revocations'],
): AsyncGenerator<ExportedRecord> {
  for (const kind of kinds) {
    let after: string | undefined;
    for (;;) {
      const range = { limit: PAGE_SIZE, ...startAfter(after) };
      const page = env.readFresh(() => [...env.tables[kind].getRange(range)]);
      for (const { key, value } of page) {
        const exported = exportRecord(kind, key, value, now(), authenticator);
        if (exported !== undefined) yield exported;
      }
      after = page.at(-1)?.key;
      if (page.length < PAGE_SIZE) break;
      await new Promise(setImmediate);
    }
  }
}

function exportRecord(
  kind: TableName,
  id: string,
  bytes: Buffer,
  now: Epoch,
  authenticator: RecordAuthenticator,
): ExportedRecord | undefined {
  if (kind === 'revocations') {
    if (id === LAST_NUMBER) return undefined;
    const entry = unpack(bytes);
    const { keepUntil } = entry;
    return now < keepUntil ? { kind, id, record: toRevocation([id, entry]), keepUntil } : undefined;
  }
  const found = parseRecord(kind, id, bytes);
  const { record, keepUntil } = found;
  if (now >= keepUntil || checkRecord(authenticator, found, now) === 'refused') return undefined;
  return { kind, id, record, keepUntil };
}

/** A consistent copy of the running store, with a MAC. It appears complete or not at all, with mode 0600, and overwrites nothing. */
export async function createBackup(
  env: Env,
  toFile: string,
  authenticator: RecordAuthenticator,
  report?: ReportProgress,
): Promise<void> {
  const target = resolve(toFile);
  if (existsSync(target))
    throw fileFault('cannot_create', `${target} already exists; a backup does not overwrite files`);
  let tempFolder: string;
  try {
    tempFolder = mkdtempSync(join(dirname(target), '.gatehouse-backup-'));
  } catch (error) {
    throw fileFault('cannot_create', `cannot write a backup to ${dirname(target)}`, error);
  }
  try {
    const copy = join(tempFolder, 'copy');
    await env.root.backup(copy, true);
    chmodSync(copy, 0o600);
    await appendBackupMac(copy, { authenticator, report });
    syncPath(copy);
    linkSync(copy, target);
    syncPath(dirname(target));
  } catch (error) {
    throw toFault(error, `the backup to ${target} failed`);
  } finally {
    rmSync(tempFolder, { recursive: true, force: true });
  }
}

interface BackupVerification {
  readonly authenticator: RecordAuthenticator;
  readonly report?: ReportProgress | undefined;
}

interface RestoreOptions extends BackupVerification {
  readonly from: string;
  readonly path: string;
}

/**
 * Creates a store from a backup. Its MAC is verified, and every page and record of the copy is checked before it is moved
 * into place; on any error the folder is left without a store. Returns how many records there are, and how many of them
 * fail authentication.
 */
export async function restoreBackup(options: RestoreOptions) {
  const { from, path } = options;
  requireBackup(from);
  const files = resolveStoreFiles(path);
  prepareFolder(files);
  const unlock = acquireLock(files);
  try {
    if (existsSync(files.data) || existsSync(files.marker))
      throw fileFault(
        'cannot_create',
        `there is already a store in ${files.folder}; restore into another folder, or move it elsewhere first`,
      );
    const tempFolder = mkdtempSync(join(files.folder, '.restore-'));
    try {
      const staged = await stageBackup(from, tempFolder, options);
      const counts = await verifyRecords(staged, options);
      syncPath(staged.data);
      renameSync(staged.data, files.data);
      syncPath(files.folder);
      writeMarker(files);
      return counts;
    } finally {
      rmSync(tempFolder, { recursive: true, force: true });
    }
  } catch (error) {
    throw toFault(error, `cannot restore into ${files.folder}`);
  } finally {
    unlock();
  }
}

export type OpenedBackup = Awaited<ReturnType<typeof openBackup>>;

/** Opens a copy of a backup for reading. Its MAC, every page and every record are verified. */
export async function openBackup(from: string, now: () => Epoch, verification: BackupVerification) {
  requireBackup(from);
  const tempFolder = mkdtempSync(join(tmpdir(), 'gatehouse-migrate-'));
  const remove = (): void => rmSync(tempFolder, { recursive: true, force: true });
  try {
    const staged = await stageBackup(from, tempFolder, verification);
    const env = openEnv(staged, UNLIMITED_MAP_SIZE);
    return {
      records: (...kinds: readonly TableName[]) => exportRecords(env, now, verification.authenticator, kinds),
      /** Including expired records. */
      countRecords: (...kinds: readonly TableName[]) => countRecords(env, kinds),
      async close(): Promise<void> {
        await env.close();
        remove();
      },
    };
  } catch (error) {
    remove();
    throw toFault(error, `cannot read the backup ${resolve(from)}`);
  }
}

const UNLIMITED_MAP_SIZE = 2 ** 40;

const countRecords = (env: Env, kinds: readonly TableName[]): number =>
  kinds.reduce((sum, kind) => sum + countEntries(env.tables[kind]), 0);

function requireBackup(file: string): void {
  if (!existsSync(file)) throw fileFault('missing', `there is no backup ${resolve(file)}`);
}

/** Copies a backup into a temporary folder, as a data file without the MAC, and checks every page of it. */
async function stageBackup(from: string, tempFolder: string, verification: BackupVerification) {
  const staged = resolveStoreFiles(tempFolder);
  await copyFile(from, staged.data, constants.COPYFILE_EXCL | constants.COPYFILE_FICLONE);
  chmodSync(staged.data, 0o600);
  await removeBackupMac(resolve(from), staged.data, verification);
  try {
    checkDataFile(staged.data, true, verification.report);
  } catch (error) {
    const isDamaged = error instanceof Fault && error.code === 'store_corrupt';
    throw isDamaged ? fileFault('invalid', `the backup ${resolve(from)} is damaged; use another backup`, error) : error;
  }
  return staged;
}

/** Reads every record. One whose key is missing fails authentication like the others. */
async function verifyRecords(staged: StoreFiles, { authenticator, report }: BackupVerification) {
  let refused = 0;
  let records = 0;
  const check: RecordAuthenticator['check'] = (...args) => {
    let result: ReturnType<typeof check> = 'refused';
    try {
      result = authenticator.check(...args);
    } catch (error) {
      if (!(error instanceof Fault)) throw error;
    }
    if (result === 'refused') refused += 1;
    return result;
  };
  const env = openEnv(staged, UNLIMITED_MAP_SIZE);
  try {
    const total = countRecords(env, [...RECORD_KINDS, 'revocations']);
    for await (const _ of exportRecords(env, () => 0, { ...authenticator, check })) {
      records += 1;
      if (records % PAGE_SIZE === 0) report?.({ step: 'verifying the records', unit: 'records', done: records, total });
    }
    return { records: records + refused, refused };
  } catch (error) {
    throw error instanceof Fault ? error : corruptFault(staged.data, 'it cannot be read', error);
  } finally {
    await env.close();
  }
}

/**
 * A backup is a copy of the data file and a trailer of fixed length: the number of bytes before it, and a MAC over that
 * number and all these bytes, including unused pages.
 */
const TRAILER_BYTES = 128;
const TRAILER = /^\ngatehouse backup 1 ([A-Za-z0-9]{4,32}) (\d{1,15}) ([A-Za-z0-9_-]{43}) *\n$/;
const CHUNK_BYTES = 2 ** 20;

const formatTrailerHead = (keyId: string, bytes: number): string => `gatehouse backup 1 ${keyId} ${bytes}`;

async function appendBackupMac(file: string, { authenticator, report }: BackupVerification): Promise<void> {
  const mac = authenticator.createBackupMac();
  if (mac === undefined) throw new Fault('keys_unavailable', 'no key is available to authenticate the backup');
  await using handle = await open(file, 'r+');
  const { size } = await handle.stat();
  const digest = await computeDigest(handle, mac, size, { step: 'computing the MAC', report });
  const text = `\n${formatTrailerHead(mac.keyId, size)} ${digest}`;
  await handle.write(Buffer.from(`${text.padEnd(TRAILER_BYTES - 1)}\n`), 0, TRAILER_BYTES, size);
}

/** Verifies the MAC of a backup, and removes the trailer from `copy`. Throws if it is not valid. */
async function removeBackupMac(
  backup: string,
  copy: string,
  { authenticator, report }: BackupVerification,
): Promise<void> {
  const reject = (problem: string): Fault =>
    new Fault('store_corrupt', `the backup ${backup} was not restored: ${problem}`, { fileProblem: 'invalid' });
  await using handle = await open(copy, 'r+');
  const dataBytes = (await handle.stat()).size - TRAILER_BYTES;
  const trailer = Buffer.alloc(TRAILER_BYTES);
  if (dataBytes >= 0) await handle.read(trailer, 0, TRAILER_BYTES, dataBytes);
  const [, keyId, claimedBytes, claimedDigest] = TRAILER.exec(trailer.toString('latin1')) ?? [];
  if (keyId === undefined || claimedDigest === undefined)
    throw reject('it has no MAC at its end, so it is truncated, altered or not a backup. Use another backup');
  const mac = authenticator.createBackupMac(keyId);
  if (mac === undefined)
    throw reject(
      `it was made with the key ${keyId}, which keys.file does not have. Restore the key file from that time`,
    );
  const digest = await computeDigest(handle, mac, dataBytes, { step: 'verifying the MAC', report });
  if (Number(claimedBytes) !== dataBytes || !isEqualConstantTime(digest, claimedDigest))
    throw reject('it was altered since it was made: its MAC is wrong. Use another backup');
  await handle.truncate(dataBytes);
}

async function computeDigest(
  handle: FileHandle,
  mac: BackupMac,
  size: number,
  { step, report }: { readonly step: string; readonly report: ReportProgress | undefined },
): Promise<string> {
  mac.update(Buffer.from(`${formatTrailerHead(mac.keyId, size)}\n`));
  const chunk = Buffer.alloc(Math.min(CHUNK_BYTES, Math.max(1, size)));
  for (let offset = 0; offset < size; ) {
    const { bytesRead } = await handle.read(chunk, 0, Math.min(chunk.length, size - offset), offset);
    if (bytesRead === 0) throw new Fault('store_unavailable', 'the backup file shrank while it was being read');
    mac.update(chunk.subarray(0, bytesRead));
    offset += bytesRead;
    report?.({ step, unit: 'bytes', done: offset, total: size });
  }
  return mac.digest();
}
