import type { Epoch } from '../../domain/epoch.ts';
import { getIssuerOfClient } from '../../domain/verified-token.ts';
import { createPrivateField } from '../../lib/private-field.ts';
import type { RevocationLog, RevocationSubject } from '../../ports/revocation-log.ts';
import { isValidRecordId, retryOnConflict, unreadableFault } from '../record-format.ts';
import {
  clientKey,
  grantKey,
  identityKey,
  issuerKey,
  mergeEntries,
  type RevocationEntry,
  toKeyedEntry,
} from '../revocation-rules.ts';
import type { Env } from './env.ts';
import { createInitialVersion, PLACEHOLDER } from './records.ts';

/**
 * Revocations are read synchronously from the memory map on every request. If no other process writes to the store
 * (`isSoleProcess`), a subject that is not revoked is looked up again only after an announcement.
 *
 * Clients, identities and trusted issuers are seldom revoked. A stamp in the table changes in the same transaction as such an entry, so that
 * all processes know which of them have entries.
 */
export function createEmbeddedRevocations(env: Env, now: () => Epoch, isSoleProcess: boolean): RevocationLog {
  const table = env.tables.revocations;
  /** Which kinds of entries there are, as of a stamp. */
  let stamped = { stamp: -1, hasClients: true, hasIdentities: true, hasIssuers: true };
  let announceCount = 0;
  /** The cache cannot be used after a write with an unknown outcome. */
  let isCacheReliable = isSoleProcess;
  /** Subjects that were not revoked, with `announceCount` at that time. */
  const unrevoked = createPrivateField<RevocationSubject, number>();
  /** An expired entry was ignored. The result is not cached: the clock may be wrong, and be corrected. */
  let hasIgnoredExpired = false;

  const readLimit = (key: string): number => {
    const bytes = table.getBinaryFast(key);
    if (bytes === undefined) return 0;
    const { limit, keepUntil } = unpack(bytes);
    if (now() < keepUntil) return limit;
    hasIgnoredExpired = true;
    return 0;
  };

  const hasEntries = (prefix: string): boolean => {
    for (const _ of table.getKeys({ start: `${prefix}:`, end: `${prefix};`, limit: 1 })) return true;
    return false;
  };

  const refreshStamp = (): void => {
    const stamp = table.getBinaryFast(STAMP)?.readDoubleLE(1) ?? 0;
    if (stamp === stamped.stamp) return;
    stamped = {
      stamp,
      hasClients: hasEntries('c'),
      hasIdentities: hasEntries('i'),
      hasIssuers: hasEntries('t'),
    };
  };

  const lookup: RevocationLog['isRevoked'] = ({
    grantId,
    generation,
    clientId,
    identity,
    issuedAt,
    issuer,
    sessionId,
    exchangedFrom,
  }) =>
    env.readFresh(() => {
      if (generation < readLimit(grantKey(grantId))) return true;
      if (sessionId !== undefined && generation < readLimit(grantKey(sessionId))) return true;
      refreshStamp();
      return (
        (stamped.hasClients &&
          (issuedAt < readLimit(clientKey(clientId)) ||
            (exchangedFrom !== undefined && issuedAt < readLimit(clientKey(exchangedFrom))))) ||
        (stamped.hasIdentities && issuedAt < readLimit(identityKey(identity))) ||
        (stamped.hasIssuers &&
          issuedAt < readLimit(issuerKey(issuer ?? getIssuerOfClient(exchangedFrom ?? ''))))
      );
    });

  return {
    announce: serializeByKey(async (key, requested) => {
      try {
        await writeEntry(env, key, requested);
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
  };
}

/** Merges an entry into the stored one. */
function writeEntry(env: Env, key: string, requested: RevocationEntry): Promise<unknown> {
  const table = env.tables.revocations;
  return retryOnConflict(async () => {
    const found = env.readFresh(() => table.getEntry(key));
    const current = found && unpack(found.value);
    const entry = mergeEntries(current, requested);
    if (current?.limit === entry.limit && current.keepUntil === entry.keepUntil) return 'unchanged';
    const version = found?.version ?? 0;
    const change = (): void => {
      void table.put(key, pack(entry), found === undefined ? createInitialVersion() : version + 1);
      if (current?.keepUntil !== entry.keepUntil) {
        if (current !== undefined) void env.expiry.remove([current.keepUntil, 'revocations', key]);
        void env.expiry.put([entry.keepUntil, 'revocations', key], PLACEHOLDER);
      }
      if (key.startsWith('g:')) return;
      const stamp = pack({ limit: createInitialVersion(), keepUntil: 0 });
      void table.put(STAMP, stamp, createInitialVersion());
    };
    const isDone = await env.writeQueue.write({
      purpose: 'revoke',
      bytes: ENTRY_BYTES + key.length,
      change: () =>
        found === undefined ? table.ifNoExists(key, change) : table.ifVersion(key, version, change),
    });
    return isDone ? 'written' : 'conflict';
  });
}

/** Writes one announcement per key at a time. Those that arrive meanwhile are merged into one. */
function serializeByKey(
  write: (key: string, entry: RevocationEntry) => Promise<void>,
): RevocationLog['announce'] {
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

/** Not the key of an entry: those begin with `g:`, `c:` or `i:`. */
export const STAMP = '#';

const FORMAT = 1;
const ENTRY_BYTES = 17;

function pack({ limit, keepUntil }: RevocationEntry): Buffer {
  const bytes = Buffer.alloc(ENTRY_BYTES);
  bytes.writeUInt8(FORMAT, 0);
  bytes.writeDoubleLE(limit, 1);
  bytes.writeDoubleLE(keepUntil, 9);
  return bytes;
}

/** An unreadable entry must not be ignored: a revoked token would be accepted. */
export function unpack(bytes: Buffer): RevocationEntry {
  if (bytes.length !== ENTRY_BYTES || bytes[0] !== FORMAT)
    throw unreadableFault('revocations', 'it has another format');
  return { limit: bytes.readDoubleLE(1), keepUntil: bytes.readDoubleLE(9) };
}
