import { hash } from 'node:crypto';
import { getLastVersion } from 'lmdb';
import type { Epoch, Grant } from '../../domain/grant.ts';
import { type GrantIndex, type GrantPage, type GrantQuery, matchesQuery } from '../../ports/grant-index.ts';
import type { RecordAuthenticator, RecordKind, RecordLocation } from '../../ports/record-authenticator.ts';
import { KEEP_FOREVER, type RecordStore, type Version } from '../../ports/store.ts';
import {
  checkRecord,
  type Envelope,
  type FoundRecord,
  formatEnvelope,
  isValidRecordId,
  parseEnvelope,
  requireValidRecordId,
  retryOnConflict,
  toStoredRecord,
  unreadableFault,
} from '../record-format.ts';
import { type Env, type IdentityIndexKey, startAfter, type TableName } from './env.ts';

interface EmbeddedRecord extends Envelope, FoundRecord {
  readonly keepUntil: Epoch;
}

/** `version` is needed only to replace the record. */
export function parseRecord(kind: RecordKind, id: string, bytes: Buffer, version = 0): EmbeddedRecord {
  const envelope = parseEnvelope(kind, bytes.toString());
  const { keepUntil } = envelope;
  if (typeof keepUntil !== 'number') throw unreadableFault(kind, 'it is damaged');
  return {
    ...envelope,
    keepUntil,
    location: toLocation(kind, id),
    version: formatVersion(version, keepUntil),
  };
}

/** The expiry is part of the text, so no context is needed. */
const toLocation = (kind: RecordKind, id: string): RecordLocation => ({ kind, id, context: '' });

/** Random at creation and then incremented, so that a writer of an earlier record with the same id finds no match. */
export const createInitialVersion = (): number => Math.floor(Math.random() * 2 ** 51) + 1;

interface SeenVersion {
  readonly version: number;
  readonly keepUntil: Epoch;
}

const formatVersion = (version: number, keepUntil: Epoch): Version => `${version} ${keepUntil}` as Version;

function parseVersion(text: Version): SeenVersion | undefined {
  const [version = Number.NaN, keepUntil = Number.NaN] = text.split(' ').map(Number);
  return Number.isSafeInteger(version) && Number.isFinite(keepUntil) ? { version, keepUntil } : undefined;
}

/** Undefined for records other than grants. */
export function getIdentityIndexKey(kind: TableName, id: string, record: unknown): IdentityIndexKey | undefined {
  if (kind !== 'grants' || typeof record !== 'object' || record === null || !('identity' in record)) return undefined;
  return typeof record.identity === 'string' ? [hashIdentity(record.identity), id] : undefined;
}

/** LMDB keys have a maximum length. */
const hashIdentity = (identity: string): string => hash('sha256', identity, 'base64url');

export const PLACEHOLDER = Buffer.from([1]);

/** Ending a grant follows its revocation, and may use the space reserved for revocations. */
function getWritePurpose(seen: SeenVersion | undefined, record: unknown): 'new' | 'update' | 'revoke' {
  if (seen === undefined) return 'new';
  return typeof record === 'object' && record !== null && 'revokedAt' in record ? 'revoke' : 'update';
}

interface RecordWrite {
  readonly id: string;
  readonly record: unknown;
  readonly keepUntil: Epoch;
  /** Writes only if the stored record still has this version; undefined: if there is none. */
  readonly seen: SeenVersion | undefined;
  readonly version: number;
  /** A grant keeps its identity, so only creation and removal change the index. */
  readonly indexKeys?: readonly [before: IdentityIndexKey | undefined, after: IdentityIndexKey | undefined];
}

/** Writes a record with its index entries; false when the condition of the write did not hold. */
function putRecord(
  env: Env,
  kind: RecordKind,
  authenticator: RecordAuthenticator,
  { id, record, keepUntil, seen, version, indexKeys = [undefined, undefined] }: RecordWrite,
): Promise<boolean> {
  const table = env.tables[kind];
  const bytes = Buffer.from(authenticator.seal(toLocation(kind, id), formatEnvelope(record, keepUntil)));
  const [indexKeyBefore, indexKeyAfter] = indexKeys;
  const change = (): void => {
    void table.put(id, bytes, version);
    if (indexKeyBefore !== undefined) void env.identityIndex.remove(indexKeyBefore);
    if (indexKeyAfter !== undefined) void env.identityIndex.put(indexKeyAfter, PLACEHOLDER);
    if (keepUntil === seen?.keepUntil) return;
    if (seen !== undefined && seen.keepUntil !== KEEP_FOREVER) void env.expiry.remove([seen.keepUntil, kind, id]);
    if (keepUntil !== KEEP_FOREVER) void env.expiry.put([keepUntil, kind, id], PLACEHOLDER);
  };
  return env.writeQueue.write({
    purpose: getWritePurpose(seen, record),
    bytes: bytes.length,
    change: () => (seen === undefined ? table.ifNoExists(id, change) : table.ifVersion(id, seen.version, change)),
  });
}

export function createEmbeddedRecords<T>(
  env: Env,
  kind: RecordKind,
  now: () => Epoch,
  authenticator: RecordAuthenticator,
): RecordStore<T> {
  const table = env.tables[kind];

  const find = (id: string): EmbeddedRecord | undefined =>
    env.readFresh(() => {
      // lmdb's own buffer, valid until the next read: no allocation outside the heap.
      const bytes = table.getBinaryFast(id);
      return bytes === undefined ? undefined : parseRecord(kind, id, bytes, getLastVersion());
    });

  return {
    async read(id) {
      if (!isValidRecordId(id)) return undefined;
      const found = find(id);
      const at = now();
      return found !== undefined && at < found.keepUntil ? toStoredRecord<T>(authenticator, found, at) : undefined;
    },

    async create(id, record, keepUntil) {
      requireValidRecordId(id);
      env.requireSpace();
      return retryOnConflict(async () => {
        const found = find(id);
        const isReplaceable =
          found === undefined ||
          now() >= found.keepUntil ||
          (kind === 'notes' && checkRecord(authenticator, found, now()) === 'refused');
        if (!isReplaceable) return 'taken';
        const isDone = await putRecord(env, kind, authenticator, {
          id,
          record,
          keepUntil,
          seen: found && parseVersion(found.version),
          version: createInitialVersion(),
          indexKeys: [getIdentityIndexKey(kind, id, found?.record), getIdentityIndexKey(kind, id, record)],
        });
        return isDone ? 'created' : 'conflict';
      });
    },

    async replace(id, expected, record, keepUntil) {
      if (!isValidRecordId(id)) return 'stale';
      const seen = parseVersion(expected);
      if (seen === undefined || now() >= seen.keepUntil) return 'stale';
      const write = { id, record, keepUntil, seen, version: seen.version + 1 };
      return (await putRecord(env, kind, authenticator, write)) ? 'replaced' : 'stale';
    },
  };
}

/** Limits the time for a page, even if nothing matches. */
const MAX_SCANNED = 2_000;

/** Grants are ordered by id, with and without an identity. */
export function createEmbeddedGrantIndex(env: Env, now: () => Epoch, authenticator: RecordAuthenticator): GrantIndex {
  const { grants } = env.tables;

  const readGrant = (id: string, bytes: Buffer, query: GrantQuery): Grant | undefined => {
    const found = parseRecord('grants', id, bytes);
    const grant = found.record as Grant;
    const at = now();
    if (at >= found.keepUntil || !matchesQuery(grant, query)) return undefined;
    return checkRecord(authenticator, found, at) === 'refused' ? undefined : grant;
  };

  const buildPage = (
    query: GrantQuery,
    rows: Iterable<readonly [id: string, bytes: Buffer | undefined]>,
  ): GrantPage => {
    const found: Grant[] = [];
    let scanned = 0;
    let last: string | undefined;
    for (const [id, bytes] of rows) {
      if (last !== undefined && (found.length >= query.limit || scanned >= MAX_SCANNED))
        return { grants: found, next: last };
      scanned += 1;
      last = id;
      const grant = bytes && readGrant(id, bytes, query);
      if (grant !== undefined) found.push(grant);
    }
    return { grants: found };
  };

  function* scanAll({ after }: GrantQuery): Generator<readonly [string, Buffer]> {
    const rows = grants.getRange({ limit: MAX_SCANNED + 1, ...startAfter(after) });
    for (const { key, value } of rows) yield [key, value];
  }

  function* scanIdentity(
    identity: string,
    { after = '' }: GrantQuery,
  ): Generator<readonly [string, Buffer | undefined]> {
    const identityHash = hashIdentity(identity);
    const start: IdentityIndexKey = [identityHash, after];
    for (const [hash, id] of env.identityIndex.getKeys({ start, limit: MAX_SCANNED + 2 })) {
      if (hash !== identityHash) return;
      if (id !== after) yield [id, grants.get(id)];
    }
  }

  return {
    list: async (query) =>
      env.readFresh(() => {
        const { identity } = query;
        return buildPage(query, identity === undefined ? scanAll(query) : scanIdentity(identity, query));
      }),
  };
}

export const countEntries = (table: { getStats(): object }): number =>
  (table.getStats() as { readonly entryCount: number }).entryCount;
