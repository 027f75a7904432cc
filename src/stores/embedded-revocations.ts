import type { Epoch } from '../domain/epoch.ts';
import { Fault } from '../ports/fault.ts';
import type { RevocationLog } from '../ports/revocation-log.ts';
import type { Env } from './embedded-env.ts';
import { EMPTY, expiryKey, firstVersion, unreadable } from './embedded-records.ts';
import { isUsableId } from './record-id.ts';
import {
  clientKey,
  entryOf,
  grantKey,
  identityKey,
  keyOf,
  type RevocationEntry,
  stricter,
} from './revocation-rules.ts';

/**
 * Revocations are read straight from the memory map, synchronously, on every request. Where nobody else writes to the
 * store (`alone`), a bearer that was not revoked is not looked up again before something has been announced here.
 *
 * Whole clients and identities are revoked seldom. A stamp beside the entries changes in the same transaction
 * as any of those, so while it stays the same we know, across processes, which of these tables have entries.
 */
export function embeddedRevocations(env: Env, now: () => Epoch, alone: boolean): RevocationLog {
  const table = env.tables.revocations;
  let knownStamp = -1;
  let anyClient = true;
  let anyIdentity = true;
  /** Counts what was announced; of no use any more once a write has ended in doubt. */
  let announced = 0;
  let certain = alone;
  const unrevoked = new WeakMap<object, number>();
  /** An entry was passed over because its time is over. The clock may be wrong, and be set right again. */
  let passedOver = false;

  const limitOf = (key: string): number => {
    const bytes = table.getBinaryFast(key);
    if (bytes === undefined) return 0;
    const { limit, keepUntil } = unpack(bytes);
    if (now() < keepUntil) return limit;
    passedOver = true;
    return 0;
  };

  const has = (prefix: string): boolean => {
    for (const _ of table.getKeys({ start: `${prefix}:`, end: `${prefix};`, limit: 1 })) return true;
    return false;
  };

  const minding = (): void => {
    const bytes = table.getBinaryFast(STAMP);
    const stamp = bytes === undefined ? 0 : bytes.readDoubleLE(1);
    if (stamp === knownStamp) return;
    anyClient = has('c');
    anyIdentity = has('i');
    knownStamp = stamp;
  };

  const write = async (key: string, asked: RevocationEntry): Promise<void> => {
    for (let tries = 0; tries < MAX_TRIES; tries += 1) {
      const found = env.fresh(() => table.getEntry(key));
      const known = found && unpack(found.value);
      const entry = known === undefined ? asked : stricter(known, asked);
      if (known !== undefined && known.limit === entry.limit && known.keepUntil === entry.keepUntil) return;
      const change = (): void => {
        void table.put(key, pack(entry), found === undefined ? firstVersion() : (found.version ?? 0) + 1);
        if (known?.keepUntil !== entry.keepUntil) {
          if (known !== undefined) void env.expiry.remove(expiryKey(known.keepUntil, 'revocations', key));
          void env.expiry.put(expiryKey(entry.keepUntil, 'revocations', key), EMPTY);
        }
        if (!key.startsWith('g:'))
          void table.put(STAMP, pack({ limit: firstVersion(), keepUntil: 0 }), firstVersion());
      };
      const done = await env.writes.write({
        purpose: 'revoke',
        bytes: LENGTH + key.length,
        change: () =>
          found === undefined
            ? table.ifNoExists(key, change)
            : table.ifVersion(key, found.version ?? 0, change),
      });
      if (done) return;
    }
    throw new Fault('overloaded', 'too many writers for one revocation');
  };

  const lookUp: RevocationLog['isRevoked'] = ({ grantId, generation, clientId, identity, issuedAt }) =>
    env.fresh(() => {
      if (generation < limitOf(grantKey(grantId))) return true;
      minding();
      return (
        (anyClient && issuedAt < limitOf(clientKey(clientId))) ||
        (anyIdentity && issuedAt < limitOf(identityKey(identity)))
      );
    });

  return {
    announce: oneAtATime(async (key, asked) => {
      try {
        await write(key, asked);
      } catch (error) {
        // It may be written all the same, or later.
        certain = false;
        throw error;
      } finally {
        announced += 1;
      }
    }),

    isRevoked(bearer) {
      if (certain && unrevoked.get(bearer) === announced) return false;
      passedOver = false;
      const revoked = lookUp(bearer);
      if (certain && !revoked && !passedOver) unrevoked.set(bearer, announced);
      return revoked;
    },
  };
}

/** Whoever loses to another process looks again; more often than this is no race but a fault. */
const MAX_TRIES = 50;

/**
 * Announcements for one key would only get in each other's way: one is written at a time, and those that come
 * meanwhile become one, the strictest of them.
 */
function oneAtATime(
  write: (key: string, entry: RevocationEntry) => Promise<void>,
): RevocationLog['announce'] {
  const running = new Map<string, Promise<void>>();
  const waiting = new Map<string, { entry: RevocationEntry; readonly done: Promise<void> }>();

  const start = (key: string, entry: RevocationEntry): Promise<void> => {
    const written = write(key, entry).finally(() => running.delete(key));
    running.set(key, written);
    return written;
  };

  const afterwards = async (before: Promise<void>, key: string): Promise<void> => {
    await before.catch(() => {});
    const next = waiting.get(key);
    waiting.delete(key);
    if (next !== undefined) await start(key, next.entry);
  };

  return async (revocation) => {
    const key = keyOf(revocation);
    if (!isUsableId(key)) throw new RangeError('not a name the store can keep');
    const entry = entryOf(revocation);
    const joined = waiting.get(key);
    if (joined !== undefined) {
      joined.entry = stricter(joined.entry, entry);
      return joined.done;
    }
    const before = running.get(key);
    if (before === undefined) return start(key, entry);
    const turn = { entry, done: afterwards(before, key) };
    waiting.set(key, turn);
    return turn.done;
  };
}

/** No entry's key: those begin with `g:`, `c:` or `i:`. */
export const STAMP = '#';

const FORMAT = 1;
const LENGTH = 17;

function pack({ limit, keepUntil }: RevocationEntry): Buffer {
  const bytes = Buffer.alloc(LENGTH);
  bytes.writeUInt8(FORMAT, 0);
  bytes.writeDoubleLE(limit, 1);
  bytes.writeDoubleLE(keepUntil, 9);
  return bytes;
}

/** An entry that cannot be read must not let a revoked token pass: it is a fault. */
export function unpack(bytes: Buffer): RevocationEntry {
  if (bytes.length !== LENGTH || bytes[0] !== FORMAT)
    throw unreadable('revocations', 'it has another format');
  return { limit: bytes.readDoubleLE(1), keepUntil: bytes.readDoubleLE(9) };
}
