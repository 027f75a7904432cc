import { timingSafeEqual } from 'node:crypto';
import { type FileHandle, open } from 'node:fs/promises';
import { Fault } from '../ports/fault.ts';
import type { BackupMac, RecordAuthenticator } from '../ports/record-authenticator.ts';

/**
 * A backup is a copy of the data file, followed by a trailer of fixed length: the number of bytes before it, and a MAC over
 * that number and every one of those bytes. Pages that no record uses are covered too.
 */
const TRAILER_BYTES = 128;
const TRAILER = /^\ngatehouse backup 1 ([A-Za-z0-9]{4,32}) (\d{1,15}) ([A-Za-z0-9_-]{43}) *\n$/;
const CHUNK_BYTES = 2 ** 20;

const headOf = (keyId: string, bytes: number): string => `gatehouse backup 1 ${keyId} ${bytes}`;

export async function appendBackupMac(file: string, authenticator: RecordAuthenticator): Promise<void> {
  const mac = authenticator.backupMac();
  if (mac === undefined) throw new Fault('keys_unavailable', 'there is no key to authenticate a backup with');
  const handle = await open(file, 'r+');
  try {
    const { size } = await handle.stat();
    const text = `\n${headOf(mac.keyId, size)} ${await digestOf(handle, mac, size)}`;
    await handle.write(Buffer.from(`${text.padEnd(TRAILER_BYTES - 1)}\n`), 0, TRAILER_BYTES, size);
  } finally {
    await handle.close();
  }
}

/** Throws unless the MAC is right; then removes the trailer. `file` is a private copy: the backup stays as it is. */
export async function takeBackupMac(
  file: string,
  authenticator: RecordAuthenticator,
  name: string,
): Promise<void> {
  const handle = await open(file, 'r+');
  try {
    const found = await trailerOf(handle);
    if (found === undefined)
      throw refused(
        name,
        'it is truncated or altered at its end, or an earlier release made it, without a MAC. If you know where it comes from, run gatehouse restore --unauthenticated',
      );
    const { keyId, bytes, digest } = found;
    const mac = authenticator.backupMac(keyId);
    if (mac === undefined)
      throw refused(
        name,
        `it was made with the key ${keyId}, which keys.file does not have. Put the key file of that time there`,
      );
    if (bytes !== found.before || !isSame(await digestOf(handle, mac, found.before), digest))
      throw refused(name, 'it was altered since it was made: its MAC is wrong. Use another backup');
    await handle.truncate(bytes);
  } finally {
    await handle.close();
  }
}

/** For backups that are to be restored without looking at their MAC. */
export async function dropBackupMac(file: string): Promise<void> {
  const handle = await open(file, 'r+');
  try {
    const found = await trailerOf(handle);
    if (found !== undefined) await handle.truncate(found.before);
  } finally {
    await handle.close();
  }
}

interface Trailer {
  readonly keyId: string;
  /** As the trailer has it, and as the file has it. */
  readonly bytes: number;
  readonly before: number;
  readonly digest: string;
}

async function trailerOf(handle: FileHandle): Promise<Trailer | undefined> {
  const { size } = await handle.stat();
  const before = size - TRAILER_BYTES;
  if (before < 0) return undefined;
  const { buffer } = await handle.read(Buffer.alloc(TRAILER_BYTES), 0, TRAILER_BYTES, before);
  const [, keyId, bytes, digest] = TRAILER.exec(buffer.toString('latin1')) ?? [];
  if (keyId === undefined || bytes === undefined || digest === undefined) return undefined;
  return { keyId, bytes: Number(bytes), before, digest };
}

async function digestOf(handle: FileHandle, mac: BackupMac, size: number): Promise<string> {
  mac.update(Buffer.from(`${headOf(mac.keyId, size)}\n`));
  const chunk = Buffer.alloc(Math.min(CHUNK_BYTES, Math.max(1, size)));
  for (let at = 0; at < size; ) {
    const { bytesRead } = await handle.read(chunk, 0, Math.min(chunk.length, size - at), at);
    if (bytesRead === 0) throw new Fault('store_unavailable', 'the backup became shorter while it was read');
    mac.update(chunk.subarray(0, bytesRead));
    at += bytesRead;
  }
  return mac.digest();
}

const isSame = (one: string, other: string): boolean =>
  one.length === other.length && timingSafeEqual(Buffer.from(one), Buffer.from(other));

const refused = (name: string, why: string): Fault =>
  new Fault('store_corrupt', `the backup ${name} was not restored: ${why}`);
