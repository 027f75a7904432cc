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

/** `unknown_key`: of a key that keys.file does not have; `not_checked`: there are no keys to check it with. */
export type MacState = 'right' | 'wrong' | 'absent' | 'unknown_key' | 'not_checked';

/** Throws unless the MAC is right; then removes the trailer. `file` is a private copy: the backup stays as it is. */
export async function takeBackupMac(
  file: string,
  authenticator: RecordAuthenticator,
  name: string,
): Promise<void> {
  const handle = await open(file, 'r+');
  try {
    const found = await trailerOf(handle);
    const state = await stateOf(handle, found, authenticator);
    if (state !== 'right' || found === undefined) throw refused(name, WHY[state](found?.keyId ?? ''));
    await handle.truncate(found.before);
  } finally {
    await handle.close();
  }
}

const WHY: Readonly<Record<MacState, (keyId: string) => string>> = {
  right: () => '',
  not_checked: () => 'there are no keys to verify it with',
  absent: () =>
    'it has no MAC at its end, so it is truncated, altered or not a backup. Use another backup. Only if gatehouse made it before backups had a MAC, and you know where it comes from: run gatehouse restore --unauthenticated',
  unknown_key: (keyId) =>
    `it was made with the key ${keyId}, which keys.file does not have. Put the key file of that time there`,
  wrong: () => 'it was altered since it was made: its MAC is wrong. Use another backup',
};

/** For backups that are restored whatever their MAC is: removes the trailer, and returns what is known about it. */
export async function dropBackupMac(
  file: string,
  authenticator: RecordAuthenticator | undefined,
): Promise<MacState> {
  const handle = await open(file, 'r+');
  try {
    const found = await trailerOf(handle);
    const state = await stateOf(handle, found, authenticator);
    if (found !== undefined) await handle.truncate(found.before);
    return state;
  } finally {
    await handle.close();
  }
}

async function stateOf(
  handle: FileHandle,
  found: Trailer | undefined,
  authenticator: RecordAuthenticator | undefined,
): Promise<MacState> {
  if (found === undefined) return 'absent';
  if (authenticator === undefined) return 'not_checked';
  const mac = authenticator.backupMac(found.keyId);
  if (mac === undefined) return 'unknown_key';
  return found.bytes === found.before && isSame(await digestOf(handle, mac, found.before), found.digest)
    ? 'right'
    : 'wrong';
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
