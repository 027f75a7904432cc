import type { DeviceRequest } from '../../src/domain/device-request.ts';
import type { Epoch, Grant } from '../../src/domain/grant.ts';
import { type GrantIndex, matchesQuery } from '../../src/ports/grant-index.ts';
import type { Note, RecordStore, RevocationLog, Store, UserCodeEntry, Version } from '../../src/ports/store.ts';
import {
  clientKey,
  getNextNumber,
  grantKey,
  identityKey,
  issuerKey,
  mergeEntries,
  NEXT_NUMBER,
  type RevocationEntry,
  revokes,
  toKeyedEntry,
} from '../../src/stores/revocation-rules.ts';

/** An in-memory store: the reference for the tests of the other stores. */
export function createMemoryStore({ now }: { readonly now: () => Epoch }): Store {
  const grants = new Map<string, StoredEntry>();
  const devices = new Map<string, StoredEntry>();
  return {
    grants: createMemoryRecords<Grant>(grants, now),
    grantIndex: createMemoryGrantIndex(grants, now),
    devices: createMemoryRecords<DeviceRequest>(devices, now),
    userCodes: createMemoryRecords<UserCodeEntry>(new Map(), now),
    notes: createMemoryRecords<Note>(new Map(), now),
    revocations: createMemoryRevocations(now),
    isEmpty: async () => grants.size === 0 && devices.size === 0,
    waitUntilDurable: async () => {},
    probe: async () => {},
    close: async () => {},
  };
}

interface StoredEntry {
  /** Serialized, so that a caller cannot change a stored record. */
  readonly text: string;
  readonly version: Version;
  readonly keepUntil: Epoch;
}

function createMemoryRecords<T>(entries: Map<string, StoredEntry>, now: () => Epoch): RecordStore<T> {
  // Never reset: a version is unique even if its id is used again.
  let lastVersion = 0;
  const put = (id: string, record: T, keepUntil: Epoch): void => {
    lastVersion += 1;
    entries.set(id, { text: JSON.stringify(record), version: String(lastVersion) as Version, keepUntil });
  };
  const getLive = (id: string): StoredEntry | undefined => {
    const found = entries.get(id);
    if (found === undefined || now() < found.keepUntil) return found;
    entries.delete(id);
    return undefined;
  };
  return {
    async read(id) {
      const found = getLive(id);
      return found && { record: JSON.parse(found.text) as T, version: found.version, now: now() };
    },
    async create(id, record, keepUntil) {
      if (getLive(id) !== undefined) return 'taken';
      put(id, record, keepUntil);
      return 'created';
    },
    async replace(id, expected, record, keepUntil) {
      if (getLive(id)?.version !== expected) return 'stale';
      put(id, record, keepUntil);
      return 'replaced';
    },
  };
}

function createMemoryGrantIndex(entries: ReadonlyMap<string, StoredEntry>, now: () => Epoch): GrantIndex {
  return {
    async list(query) {
      const { after = '', limit } = query;
      const grants: Grant[] = [];
      let last = after;
      for (const id of [...entries.keys()].toSorted().filter((key) => key > after)) {
        const entry = entries.get(id);
        const grant = entry && now() < entry.keepUntil && (JSON.parse(entry.text) as Grant);
        if (!grant || !matchesQuery(grant, query)) continue;
        if (grants.length >= limit) return { grants, next: last };
        grants.push(grant);
        last = id;
      }
      return { grants };
    },
  };
}

function createMemoryRevocations(now: () => Epoch): RevocationLog {
  const entries = new Map<string, RevocationEntry>();
  let lastNumber = 0;
  const getActive = (key: string): RevocationEntry | undefined => {
    const entry = entries.get(key);
    return entry !== undefined && now() < entry.keepUntil ? entry : undefined;
  };
  return {
    async announce(revocation) {
      const [key, entry] = toKeyedEntry(revocation);
      const isNumbered = revocation.of !== 'grant' && entry.limit === NEXT_NUMBER;
      if (isNumbered) lastNumber = getNextNumber(lastNumber, now());
      entries.set(key, mergeEntries(entries.get(key), isNumbered ? { ...entry, limit: lastNumber } : entry));
    },
    isRevoked: (subject) =>
      subject.generation < (getActive(grantKey(subject.grantId))?.limit ?? 0) ||
      [clientKey(subject.clientId), identityKey(subject.identity), issuerKey(subject.issuer ?? '')].some((key) => {
        const entry = getActive(key);
        return entry !== undefined && revokes(entry, subject);
      }),
    getLastNumber: () => lastNumber,
  };
}
