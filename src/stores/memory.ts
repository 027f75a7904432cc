import type { DeviceRequest } from '../domain/device-request.ts';
import type { Epoch } from '../domain/epoch.ts';
import type { Grant } from '../domain/grant.ts';
import { type GrantIndex, isAsked } from '../ports/grant-index.ts';
import type { RecordStore, Version } from '../ports/record-store.ts';
import type { RevocationLog } from '../ports/revocation-log.ts';
import type { Store, UserCodeEntry } from '../ports/store.ts';
import {
  clientKey,
  entryOf,
  grantKey,
  identityKey,
  keyOf,
  type RevocationEntry,
  stricter,
} from './revocation-rules.ts';

/** The model the other stores are tested against: the same promises, none of the durability. */
export function memoryStore({ now }: { readonly now: () => Epoch }): Store {
  const grants = new Map<string, Kept>();
  const devices = new Map<string, Kept>();
  return {
    grants: memoryRecords<Grant>(grants, now),
    grantIndex: memoryGrantIndex(grants, now),
    devices: memoryRecords<DeviceRequest>(devices, now),
    userCodes: memoryRecords<UserCodeEntry>(new Map(), now),
    notes: memoryRecords<Readonly<Record<string, string>>>(new Map(), now),
    revocations: memoryRevocations(now),
    isEmpty: async () => grants.size === 0 && devices.size === 0,
    settled: async () => {},
    probe: async () => {},
    close: async () => {},
  };
}

interface Kept {
  /** As text: what is stored must survive being written down, and nobody can change it from outside. */
  readonly text: string;
  readonly version: Version;
  readonly keepUntil: Epoch;
}

function memoryRecords<T>(kept: Map<string, Kept>, now: () => Epoch): RecordStore<T> {
  // One count for all lives of all ids: a version is never given twice.
  let versions = 0;
  const keep = (id: string, record: T, keepUntil: Epoch): void => {
    versions += 1;
    kept.set(id, { text: JSON.stringify(record), version: String(versions) as Version, keepUntil });
  };
  const live = (id: string): Kept | undefined => {
    const found = kept.get(id);
    if (found === undefined || now() < found.keepUntil) return found;
    kept.delete(id);
    return undefined;
  };
  return {
    async read(id) {
      const found = live(id);
      return found && { record: JSON.parse(found.text) as T, version: found.version, now: now() };
    },
    async create(id, record, keepUntil) {
      if (live(id) !== undefined) return 'taken';
      keep(id, record, keepUntil);
      return 'created';
    },
    async replace(id, seen, record, keepUntil) {
      if (live(id)?.version !== seen) return 'stale';
      keep(id, record, keepUntil);
      return 'replaced';
    },
  };
}

function memoryGrantIndex(kept: ReadonlyMap<string, Kept>, now: () => Epoch): GrantIndex {
  return {
    async list({ after, limit, ...asked }) {
      const ids = [...kept.keys()].toSorted().filter((id) => after === undefined || id > after);
      const found: { readonly id: string; readonly grant: Grant }[] = [];
      for (const id of ids) {
        const entry = kept.get(id);
        const grant = entry && now() < entry.keepUntil && (JSON.parse(entry.text) as Grant);
        if (!grant || !isAsked(grant, { ...asked, limit })) continue;
        const last = found.at(-1)?.id;
        if (found.length >= limit && last !== undefined)
          return { grants: found.map((one) => one.grant), next: last };
        found.push({ id, grant });
      }
      return { grants: found.map(({ grant }) => grant) };
    },
  };
}

function memoryRevocations(now: () => Epoch): RevocationLog {
  const entries = new Map<string, RevocationEntry>();
  const limitOf = (key: string): number => {
    const entry = entries.get(key);
    if (entry === undefined) return 0;
    if (now() < entry.keepUntil) return entry.limit;
    entries.delete(key);
    return 0;
  };
  return {
    async announce(revocation) {
      const key = keyOf(revocation);
      const known = entries.get(key);
      const entry = entryOf(revocation);
      entries.set(key, known === undefined ? entry : stricter(known, entry));
    },
    isRevoked: ({ grantId, generation, clientId, identity, issuedAt }) =>
      generation < limitOf(grantKey(grantId)) ||
      issuedAt < limitOf(clientKey(clientId)) ||
      issuedAt < limitOf(identityKey(identity)),
  };
}
