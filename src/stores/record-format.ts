import type { Epoch } from '../domain/grant.ts';
import { Fault } from '../ports/fault.ts';
import type { Authenticity, RecordAuthenticator, RecordLocation } from '../ports/record-authenticator.ts';
import type { StoredRecord, Version } from '../ports/store.ts';

/** Shared by both stores, so that records can be migrated: LMDB keys have a maximum length. */
const MAX_ID_LENGTH = 480;

/** Text that is not well-formed would be read back differently. */
export const isValidRecordId = (id: string): boolean =>
  id.length > 0 && id.length <= MAX_ID_LENGTH && id.isWellFormed();

export function requireValidRecordId(id: string): void {
  if (!isValidRecordId(id)) throw new RangeError(`not a valid record id (${id.length} characters)`);
}

const FORMAT = 1;

/** `k` is the expiry, in stores that keep it inside the text. */
export const formatEnvelope = (record: unknown, keepUntil?: Epoch): string =>
  JSON.stringify({ v: FORMAT, k: keepUntil, r: record });

export interface Envelope {
  readonly record: object;
  readonly keepUntil: unknown;
  /** The text itself, which the MAC covers. */
  readonly json: string;
  readonly hasMac: boolean;
}

/** An unreadable record is a fault: treating it as absent would allow its id to be used twice. */
export function parseEnvelope(kind: string, json: string): Envelope {
  let parsed: { readonly v?: number; readonly k?: unknown; readonly r?: unknown } | null;
  try {
    parsed = JSON.parse(json);
  } catch (error) {
    throw unreadableFault(kind, 'it is damaged', error);
  }
  if (typeof parsed !== 'object' || parsed?.v === undefined) throw unreadableFault(kind, 'it is damaged');
  const { v: format, k: keepUntil, r: record } = parsed;
  if (format !== FORMAT) throw unreadableFault(kind, `it has format ${format}; this version reads format ${FORMAT}`);
  if (typeof record !== 'object' || record === null) throw unreadableFault(kind, 'it is damaged');
  return { record, keepUntil, json, hasMac: 'm' in parsed };
}

export const unreadableFault = (kind: string, reason: string, cause?: unknown): Fault =>
  new Fault(
    'store_record_unreadable',
    `a record in ${kind} cannot be read: ${reason}. Was the store written by a newer version of gatehouse?`,
    { cause },
  );

/** The loser of a race re-reads and tries again; more attempts than this are not a race but a fault. */
const MAX_ATTEMPTS = 50;

export async function retryOnConflict<T>(attempt: () => Promise<T | 'conflict'>): Promise<T> {
  for (let attempts = 0; attempts < MAX_ATTEMPTS; attempts += 1) {
    const result = await attempt();
    if (result !== 'conflict') return result;
  }
  throw new Fault('overloaded', 'too many concurrent writers for one record');
}

export interface FoundRecord extends Pick<Envelope, 'record' | 'json' | 'hasMac'> {
  readonly location: RecordLocation;
  readonly version: Version;
}

export const checkRecord = (authenticator: RecordAuthenticator, found: FoundRecord, now: Epoch): Authenticity =>
  authenticator.check(found.location, found.json, found.hasMac, isExpired(found.record, now));

/** Grants are kept beyond their expiry, so that late clients get a better error; they authorize nothing any more. */
const isExpired = (record: object, now: Epoch): boolean =>
  'refreshUntil' in record && typeof record.refreshUntil === 'number' && record.refreshUntil <= now;

/** Undefined if it fails authentication. */
export const toStoredRecord = <T>(
  authenticator: RecordAuthenticator,
  found: FoundRecord,
  now: Epoch,
): StoredRecord<T> | undefined =>
  checkRecord(authenticator, found, now) === 'refused'
    ? undefined
    : { record: found.record as T, version: found.version, now };
