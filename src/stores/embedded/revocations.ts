import { type Epoch, getIssuerOfClient } from '../../domain/grant.ts';
import { createHiddenProperty } from '../../lib/hidden-property.ts';
import type { RevocationLog, RevocationSubject } from '../../ports/store.ts';
import { isValidRecordId, retryOnConflict, unreadableFault } from '../record-format.ts';
import {
  clientKey,
  getNextNumber,
  grantKey,
  identityKey,
  isGrantKey,
  issuerKey,
  mergeEntries,
  NEXT_NUMBER,
  type RevocationEntry,
  revokes,
  toKeyedEntry,
} from '../revocation-rules.ts';
import type { Env } from './env.ts';
import { createInitialVersion, PLACEHOLDER } from './records.ts';

/**
 * Revocations are read synchronously from the memory map on every request. If no other process writes to the store
 * (`isSoleProcess`), a subject that is not revoked is looked up again only after an announcement.
 *
 * Clients, identities and trusted issuers are seldom revoked. The number of the last such revocation is in the table and changes in the same
 * transaction as the entry, so that all processes know which of them have entries.
 */
export function createEmbeddedRevocations(env: Env, now: () => Epoch, isSoleProcess: boolean): RevocationLog {
  const table = env.tables.revocations;
  /** Which kinds of entries there are, as of a number. */
  let kinds = { asOf: -1, hasClients: true, hasIdentities: true, hasIssuers: true };
  let announceCount = 0;
  /** The cache cannot be used after a write with an unknown outcome. */
  let isCacheReliable = isSoleProcess;
  /** Subjects that were not revoked, with `announceCount` at that time. */
  const unrevoked = createHiddenProperty<RevocationSubject, number>();
  /** An expired entry was ignored. The result is not cached: the clock may be wrong, and be corrected. */
  let hasIgnoredExpired = false;

  const readActive = (key: string): RevocationEntry | undefined => {
    const bytes = table.getBinaryFast(key);
    if (bytes === undefined) return undefined;
    const entry = unpack(bytes);
    if (now() < entry.keepUntil) return entry;
    hasIgnoredExpired = true;
    return undefined;
  };

  const hasEntries = (prefix: string): boolean => {
    for (const _ of table.getKeys({ start: `${prefix}:`, end: `${prefix};`, limit: 1 })) return true;
    return false;
  };

  const readLastNumber = (): number => {
    const bytes = table.getBinaryFast(LAST_NUMBER);
    return bytes === undefined ? 0 : unpack(bytes).limit;
  };

  const refreshKinds = (): void => {
    const asOf = readLastNumber();
    if (asOf === kinds.asOf) return;
    kinds = {
      asOf,
      hasClients: hasEntries('c'),
      hasIdentities: hasEntries('i'),
      hasIssuers: hasEntries('t'),
    };
  };

  const lookup: RevocationLog['isRevoked'] = (subject) => {
    const { grantId, generation, clientId, identity, issuer, sessionId, exchangedFrom } = subject;
    const isGrantRevoked = (id: string): boolean => generation < (readActive(grantKey(id))?.limit ?? 0);
    const isHolderRevoked = (key: string): boolean => {
      const entry = readActive(key);
      return entry !== undefined && revokes(entry, subject);
    };
    return env.readFresh(() => {
      if (isGrantRevoked(grantId) || (sessionId !== undefined && isGrantRevoked(sessionId))) return true;
      refreshKinds();
      return (
        (kinds.hasClients &&
          (isHolderRevoked(clientKey(clientId)) ||
            (exchangedFrom !== undefined && isHolderRevoked(clientKey(exchangedFrom))))) ||
        (kinds.hasIdentities && isHolderRevoked(identityKey(identity))) ||
        (kinds.hasIssuers && isHolderRevoked(issuerKey(issuer ?? getIssuerOfClient(exchangedFrom ?? ''))))
      );
    });
  };

  return {
    announce: serializeByKey(async (key, requested) => {
      try {
        await writeEntry(env, now, key, requested);
      } catch (error) {
        // It may have been written nevertheless, or be written later.
        isCacheReliable = false;
        throw error;
      } finally {
        announceCount += 1;
      }
    }),

    isRevoked(subject) {
      if (isCacheReliable && unrevoked.get(subject) === announceCount) return false;
      hasIgnoredExpired = false;
      const revoked = lookup(subject);
      if (isCacheReliable && !revoked && !hasIgnoredExpired) unrevoked.set(subject, announceCount);
      return revoked;
    },

    getLastNumber: () => env.readFresh(readLastNumber),
  };
}

/** Merges an entry into the stored one. */
function writeEntry(env: Env, now: () => Epoch, key: string, requested: RevocationEntry): Promise<unknown> {
  const table = env.tables.revocations;
  return retryOnConflict(async () => {
    const [found, lastNumber] = env.readFresh(() => [table.getEntry(key), table.getEntry(LAST_NUMBER)]);
    const current = found && unpack(found.value);
    const nextNumber = getNextNumber(lastNumber === undefined ? 0 : unpack(lastNumber.value).limit, now());
    const isNumbered = !isGrantKey(key) && requested.limit === NEXT_NUMBER;
    const entry = mergeEntries(current, isNumbered ? { ...requested, limit: nextNumber } : requested);
    if (current?.limit === entry.limit && current.keepUntil === entry.keepUntil) return 'unchanged';
    const version = found?.version ?? 0;
    const change = (): void => {
      void table.put(key, pack(entry), found === undefined ? createInitialVersion() : version + 1);
      if (current?.keepUntil !== entry.keepUntil) {
        if (current !== undefined) void env.expiry.remove([current.keepUntil, 'revocations', key]);
        void env.expiry.put([entry.keepUntil, 'revocations', key], PLACEHOLDER);
      }
      if (isGrantKey(key)) return;
      const number = pack({ limit: Math.max(nextNumber, entry.limit), keepUntil: 0 });
      void table.put(LAST_NUMBER, number, createInitialVersion());
    };
    // Numbers are unique: an entry other than of a grant is written only if the last number is still the same.
    const [guardKey, guard] = isGrantKey(key) ? [key, found] : [LAST_NUMBER, lastNumber];
    const isDone = await env.writeQueue.write({
      purpose: 'revoke',
      bytes: BULK_ENTRY_BYTES + key.length,
      change: () =>
        guard === undefined
          ? table.ifNoExists(guardKey, change)
          : table.ifVersion(guardKey, guard.version ?? 0, change),
    });
    return isDone ? 'written' : 'conflict';
  });
}

/** Writes one announcement per key at a time. Those that arrive meanwhile are merged into one. */
function serializeByKey(write: (key: string, entry: RevocationEntry) => Promise<void>): RevocationLog['announce'] {
  const running = new Map<string, Promise<void>>();
  const waiting = new Map<string, { entry: RevocationEntry; readonly done: Promise<void> }>();

  const start = (key: string, entry: RevocationEntry): Promise<void> => {
    const written = write(key, entry).finally(() => running.delete(key));
    running.set(key, written);
    return written;
  };

  const startAfter = async (previous: Promise<void>, key: string): Promise<void> => {
    await previous.catch(() => {});
    const next = waiting.get(key);
    waiting.delete(key);
    if (next !== undefined) await start(key, next.entry);
  };

  return async (revocation) => {
    const [key, entry] = toKeyedEntry(revocation);
    if (!isValidRecordId(key)) throw new RangeError('not a valid revocation key');
    const queued = waiting.get(key);
    if (queued !== undefined) {
      queued.entry = mergeEntries(queued.entry, entry);
      return queued.done;
    }
    const previous = running.get(key);
    if (previous === undefined) return start(key, entry);
    const pending = { entry, done: startAfter(previous, key) };
    waiting.set(key, pending);
    return pending.done;
  };
}

/** The key of the last number. Those of entries begin with `g:`, `c:`, `i:` or `t:`. */
export const LAST_NUMBER = '#';

const FORMAT = 1;
const ENTRY_BYTES = 17;
const BULK_ENTRY_BYTES = 25;

function pack({ limit, keepUntil, notBefore }: RevocationEntry): Buffer {
  const bytes = Buffer.alloc(notBefore === undefined ? ENTRY_BYTES : BULK_ENTRY_BYTES);
  bytes.writeUInt8(FORMAT, 0);
  bytes.writeDoubleLE(limit, 1);
  bytes.writeDoubleLE(keepUntil, 9);
  if (notBefore !== undefined) bytes.writeDoubleLE(notBefore, 17);
  return bytes;
}

/** An unreadable entry must not be ignored: a revoked token would be accepted. */
export function unpack(bytes: Buffer): RevocationEntry {
  const { length } = bytes;
  if ((length !== ENTRY_BYTES && length !== BULK_ENTRY_BYTES) || bytes[0] !== FORMAT)
    throw unreadableFault('revocations', 'it has another format');
  const entry = { limit: bytes.readDoubleLE(1), keepUntil: bytes.readDoubleLE(9) };
  return length === ENTRY_BYTES ? entry : { ...entry, notBefore: bytes.readDoubleLE(17) };
}
