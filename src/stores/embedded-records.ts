import { hash } from 'node:crypto';
import { getLastVersion } from 'lmdb';
import type { Epoch } from '../domain/epoch.ts';
import { Fault } from '../ports/fault.ts';
import type { RecordAuthenticator, RecordPlace } from '../ports/record-authenticator.ts';
import type { RecordStore, Version } from '../ports/record-store.ts';
import { KEEP_FOREVER } from '../ports/store.ts';
import type { Env, ExpiryKey, HolderKey, RecordKind, TableName } from './embedded-env.ts';
import { isOver } from './ended-record.ts';
import { isUsableId } from './record-id.ts';

/** A record as it lies in the file. */
export interface Envelope {
  readonly record: unknown;
  readonly keepUntil: Epoch;
}

const FORMAT = 1;

/** An envelope as it was read, with what its authentication needs. */
export interface StoredEnvelope extends Envelope {
  readonly json: string;
  readonly hasMac: boolean;
}

/** The expiry is in the text, so there is no context beside it. */
export const placeOf = (kind: RecordKind, id: string): RecordPlace => ({ kind, id, context: '' });

export const seal = (
  authenticator: RecordAuthenticator,
  place: RecordPlace,
  { record, keepUntil }: Envelope,
): Buffer => Buffer.from(authenticator.seal(place, JSON.stringify({ v: FORMAT, k: keepUntil, r: record })));

/** What cannot be read is a fault: taking it for "not there" would let an id be used twice. */
export function unseal(kind: string, bytes: Buffer): StoredEnvelope {
  const json = bytes.toString();
  let read: unknown;
  try {
    read = JSON.parse(json);
  } catch (error) {
    throw unreadable(kind, 'it is damaged', error);
  }
  if (typeof read !== 'object' || read === null || !('v' in read)) throw unreadable(kind, 'it is damaged');
  if (read.v !== FORMAT)
    throw unreadable(kind, `it has format ${String(read.v)}, and this version knows ${FORMAT}`);
  if (!('k' in read) || typeof read.k !== 'number' || !('r' in read)) throw unreadable(kind, 'it is damaged');
  if (typeof read.r !== 'object' || read.r === null) throw unreadable(kind, 'it is damaged');
  return { record: read.r, keepUntil: read.k, json, hasMac: 'm' in read };
}

export const unreadable = (kind: string, why: string, cause?: unknown): Fault =>
  new Fault(
    'store_record_unreadable',
    `a record of ${kind} cannot be read: ${why}. Was the store written by a newer gatehouse?`,
    { cause },
  );

/** Versions of one life count up from a number drawn at random, so a writer from a former life finds no match. */
export const firstVersion = (): number => Math.floor(Math.random() * 2 ** 51) + 1;

interface Seen {
  readonly version: number;
  readonly keepUntil: Epoch;
}

const writeVersion = ({ version, keepUntil }: Seen): Version => `${version} ${keepUntil}` as Version;

function readVersion(text: Version): Seen | undefined {
  const [version = Number.NaN, keepUntil = Number.NaN] = text.split(' ').map(Number);
  return Number.isSafeInteger(version) && Number.isFinite(keepUntil) ? { version, keepUntil } : undefined;
}

export const expiryKey = (keepUntil: Epoch, table: TableName, id: string): ExpiryKey => [
  keepUntil,
  table,
  id,
];

/** Under whose name a record stands; only grants do. */
export function holderKey(kind: TableName, id: string, record: unknown): HolderKey | undefined {
  if (kind !== 'grants' || typeof record !== 'object' || record === null || !('identity' in record))
    return undefined;
  return typeof record.identity === 'string' ? [holderOf(record.identity), id] : undefined;
}

/** A digest, since LMDB's keys have a length. */
export const holderOf = (identity: string): string => hash('sha256', identity, 'base64url');

export const EMPTY = Buffer.from([1]);

/** The end of a grant follows its revocation, and has the space that is kept for revocations. */
function purposeOf(seen: Seen | undefined, { record }: Envelope): 'new' | 'upkeep' | 'revoke' {
  if (seen === undefined) return 'new';
  return typeof record === 'object' && record !== null && 'revokedAt' in record ? 'revoke' : 'upkeep';
}

/** Whoever loses a race looks again; more often than this is no race but a fault. */
const MAX_TRIES = 50;

export function embeddedRecords<T>(
  env: Env,
  kind: RecordKind,
  now: () => Epoch,
  authenticator: RecordAuthenticator,
): RecordStore<T> {
  const table = env.tables[kind];

  const lookUp = (id: string): (StoredEnvelope & Seen) | undefined =>
    env.fresh(() => {
      // The bytes are lmdb's own and stand until the next look: nothing is allocated outside the heap for a read.
      const bytes = table.getBinaryFast(id);
      if (bytes === undefined) return undefined;
      const version = getLastVersion();
      return { ...unseal(kind, bytes), version };
    });

  /** Puts the record and its place in the order of expiry, if the entry is still as it was seen. */
  const put = (
    id: string,
    seen: Seen | undefined,
    version: number,
    envelope: Envelope,
    holders?: { readonly before: HolderKey | undefined; readonly after: HolderKey | undefined },
  ): Promise<boolean> => {
    const bytes = seal(authenticator, placeOf(kind, id), envelope);
    const { keepUntil } = envelope;
    const change = (): void => {
      void table.put(id, bytes, version);
      if (holders?.before !== undefined) void env.holders.remove(holders.before);
      if (holders?.after !== undefined) void env.holders.put(holders.after, EMPTY);
      if (keepUntil === seen?.keepUntil) return;
      if (seen !== undefined && seen.keepUntil !== KEEP_FOREVER)
        void env.expiry.remove(expiryKey(seen.keepUntil, kind, id));
      if (keepUntil !== KEEP_FOREVER) void env.expiry.put(expiryKey(keepUntil, kind, id), EMPTY);
    };
    return env.writes.write({
      purpose: purposeOf(seen, envelope),
      bytes: bytes.length,
      change: () =>
        seen === undefined ? table.ifNoExists(id, change) : table.ifVersion(id, seen.version, change),
    });
  };

  const isRefusedNote = (id: string, { json, hasMac }: StoredEnvelope): boolean =>
    kind === 'notes' && authenticator.check(placeOf(kind, id), json, hasMac, false) === 'refused';

  /** The record with a MAC. A store that cannot write keeps it as it is for now. */
  const rewrite = async (id: string, found: StoredEnvelope & Seen): Promise<Seen | undefined> => {
    const { record, keepUntil } = found;
    const version = found.version + 1;
    try {
      return (await put(id, found, version, { record, keepUntil })) ? { version, keepUntil } : undefined;
    } catch (error) {
      if (error instanceof Fault) return found;
      throw error;
    }
  };

  return {
    async read(id) {
      if (!isUsableId(id)) return undefined;
      for (let tries = 0; tries < MAX_TRIES; tries += 1) {
        const found = lookUp(id);
        const at = now();
        if (found === undefined || at >= found.keepUntil) return undefined;
        const { record, json, hasMac } = found;
        const outcome = authenticator.check(placeOf(kind, id), json, hasMac, isOver(record, at));
        if (outcome === 'refused') return undefined;
        const seen = outcome === 'authentic' ? found : await rewrite(id, found);
        if (seen !== undefined) return { record: record as T, version: writeVersion(seen), now: at };
      }
      throw new Fault('overloaded', 'too many writers for one record');
    },

    async create(id, record, keepUntil) {
      if (!isUsableId(id)) throw new RangeError(`not an id the store can keep: ${id.length} characters`);
      env.requireRoom();
      for (let tries = 0; tries < MAX_TRIES; tries += 1) {
        const found = lookUp(id);
        if (found !== undefined && now() < found.keepUntil && !isRefusedNote(id, found)) return 'taken';
        // What has ended but was not swept yet is written over; the sweeper and we cannot both be first.
        // A grant stays with its identity for life, so only its making and its end touch the list of holders.
        const holders = { before: holderKey(kind, id, found?.record), after: holderKey(kind, id, record) };
        if (await put(id, found, firstVersion(), { record, keepUntil }, holders)) return 'created';
      }
      throw new Fault('overloaded', 'too many writers for one record');
    },

    async replace(id, seen, record, keepUntil) {
      if (!isUsableId(id)) return 'stale';
      // What was seen says all that is needed; whether it still stands is asked by the write itself.
      const found = readVersion(seen);
      if (found === undefined || now() >= found.keepUntil) return 'stale';
      return (await put(id, found, found.version + 1, { record, keepUntil })) ? 'replaced' : 'stale';
    },
  };
}
