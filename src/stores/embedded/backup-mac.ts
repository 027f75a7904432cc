import { type FileHandle, open } from 'node:fs/promises';
import { isEqualConstantTime } from '../../lib/constant-time.ts';
import { Fault } from '../../ports/fault.ts';
import type { ReportProgress } from '../../ports/progress.ts';
import type { BackupMac, RecordAuthenticator } from '../../ports/record-authenticator.ts';

/**
 * A backup is a copy of the data file and a trailer of fixed length: the number of bytes before it, and a MAC over that
 * number and all these bytes, including unused pages.
 */
const TRAILER_BYTES = 128;
const TRAILER = /^\ngatehouse backup 1 ([A-Za-z0-9]{4,32}) (\d{1,15}) ([A-Za-z0-9_-]{43}) *\n$/;
const CHUNK_BYTES = 2 ** 20;

const formatTrailerHead = (keyId: string, bytes: number): string => `gatehouse backup 1 ${keyId} ${bytes}`;

export async function appendBackupMac(
  file: string,
  authenticator: RecordAuthenticator,
  report?: ReportProgress,
): Promise<void> {
  const mac = authenticator.createBackupMac();
  if (mac === undefined) throw new Fault('keys_unavailable', 'no key is available to authenticate the backup');
  await using handle = await open(file, 'r+');
  const { size } = await handle.stat();
  const digest = await computeDigest(handle, mac, size, (done) =>
    report?.({ step: 'computing the MAC', unit: 'bytes', done, total: size }),
  );
  const text = `\n${formatTrailerHead(mac.keyId, size)} ${digest}`;
  await handle.write(Buffer.from(`${text.padEnd(TRAILER_BYTES - 1)}\n`), 0, TRAILER_BYTES, size);
}

export interface BackupVerification {
  readonly authenticator: RecordAuthenticator;
  readonly report?: ReportProgress;
}

/** Verifies the MAC of a backup, and removes the trailer from `copy`. Throws if it is not valid. */
export async function removeBackupMac(backup: string, copy: string, verification: BackupVerification): Promise<void> {
  await using handle = await open(copy, 'r+');
  const trailer = await readTrailer(handle);
  const problem =
    trailer === undefined
      ? 'it has no MAC at its end, so it is truncated, altered or not a backup. Use another backup'
      : await findMacProblem(handle, trailer, verification);
  if (trailer === undefined || problem !== undefined)
    throw new Fault('store_corrupt', `the backup ${backup} was not restored: ${problem}`, {
      fileProblem: 'invalid',
    });
  await handle.truncate(trailer.dataBytes);
}

interface Trailer {
  readonly keyId: string;
  /** As stated in the trailer. */
  readonly claimedBytes: number;
  /** As found in the file. */
  readonly dataBytes: number;
  readonly digest: string;
}

async function findMacProblem(
  handle: FileHandle,
  { keyId, claimedBytes, dataBytes, digest }: Trailer,
  { authenticator, report }: BackupVerification,
): Promise<string | undefined> {
  const mac = authenticator.createBackupMac(keyId);
  if (mac === undefined)
    return `it was made with the key ${keyId}, which keys.file does not have. Restore the key file from that time`;
  const isValid =
    claimedBytes === dataBytes &&
    isEqualConstantTime(
      await computeDigest(handle, mac, dataBytes, (done) =>
        report?.({ step: 'verifying the MAC', unit: 'bytes', done, total: dataBytes }),
      ),
      digest,
    );
  return isValid ? undefined : 'it was altered since it was made: its MAC is wrong. Use another backup';
}

async function readTrailer(handle: FileHandle): Promise<Trailer | undefined> {
  const { size } = await handle.stat();
  const dataBytes = size - TRAILER_BYTES;
  if (dataBytes < 0) return undefined;
  const { buffer } = await handle.read(Buffer.alloc(TRAILER_BYTES), 0, TRAILER_BYTES, dataBytes);
  const [, keyId, bytes, digest] = TRAILER.exec(buffer.toString('latin1')) ?? [];
  if (keyId === undefined || digest === undefined) return undefined;
  return { keyId, claimedBytes: Number(bytes), dataBytes, digest };
}

async function computeDigest(
  handle: FileHandle,
  mac: BackupMac,
  size: number,
  onRead: (bytes: number) => void,
): Promise<string> {
  mac.update(Buffer.from(`${formatTrailerHead(mac.keyId, size)}\n`));
  const chunk = Buffer.alloc(Math.min(CHUNK_BYTES, Math.max(1, size)));
  for (let offset = 0; offset < size; ) {
    const { bytesRead } = await handle.read(chunk, 0, Math.min(chunk.length, size - offset), offset);
    if (bytesRead === 0) throw new Fault('store_unavailable', 'the backup file shrank while it was being read');
    mac.update(chunk.subarray(0, bytesRead));
    offset += bytesRead;
    onRead(offset);
  }
  return mac.digest();
}
