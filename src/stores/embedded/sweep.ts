import type { Epoch } from '../../domain/epoch.ts';
import { Fault, type FaultCode } from '../../ports/fault.ts';
import { type Env, type ExpiryKey, startAfter } from './env.ts';
import { getIdentityIndexKey, parseRecord } from './records.ts';
import { unpack } from './revocations.ts';

const BATCH_SIZE = 200;

/**
 * Removes expired records in the order of their expiry, in small batches that let other writes proceed. Returns how many.
 * Readers do not depend on it: they ignore expired records. An unreadable record is kept, and reported after the others
 * are removed.
 */
export async function sweep(env: Env, now: () => Epoch, isClosing: () => boolean): Promise<number> {
  let removed = 0;
  let size = BATCH_SIZE;
  let after: ExpiryKey | undefined;
  let unreadable: unknown;
  while (!isClosing()) {
    const due = env.readFresh(() => readDueKeys(env, now(), size, after));
    if (due.length === 0) break;
    const outcomes = await Promise.allSettled(due.map((key) => removeExpired(env, key)));
    removed += outcomes.filter((outcome) => outcome.status === 'fulfilled' && outcome.value).length;
    const failures = outcomes.filter((outcome) => outcome.status === 'rejected').map(({ reason }) => reason);
    unreadable ??= failures.find((reason) => hasCode(reason, 'store_record_unreadable'));
    const failure = failures.find((reason) => !hasCode(reason, 'store_record_unreadable'));
    if (failure === undefined) after = due.at(-1);
    else {
      // Removing needs some space too: try a smaller batch.
      if (!hasCode(failure, 'store_full') || size === 1) throw failure;
      size = Math.ceil(size / 4);
      await new Promise((resolve) => setTimeout(resolve, 150));
    }
    await new Promise(setImmediate);
  }
  if (unreadable !== undefined) throw unreadable;
  return removed;
}

const hasCode = (error: unknown, code: FaultCode): boolean => error instanceof Fault && error.code === code;

/** How much faster than the monotonic clock the time may advance, to catch up after a suspension. */
const MAX_CATCH_UP_RATE = 60;

/**
 * The time for sweeping. If the clock were a year ahead for a minute, all revocations would be swept, and revoked tokens
 * would be valid again once it is corrected; so this one follows `now` gradually.
 */
export function createSlewedClock(now: () => Epoch, monotonicMs: () => number = () => performance.now()): () => Epoch {
  let slewedTime = now();
  let lastReadMs = monotonicMs();
  return () => {
    const elapsed = (monotonicMs() - lastReadMs) / 1_000;
    lastReadMs += elapsed * 1_000;
    slewedTime = Math.min(now(), slewedTime + elapsed * MAX_CATCH_UP_RATE);
    return slewedTime;
  };
}

function readDueKeys(env: Env, at: Epoch, limit: number, after: ExpiryKey | undefined): readonly ExpiryKey[] {
  const due: ExpiryKey[] = [];
  for (const key of env.expiry.getKeys({ limit, ...startAfter(after) })) {
    if (key[0] > at) break;
    due.push(key);
  }
  return due;
}

/** True when a record was removed. Conditional on its version, so a record created meanwhile is kept. */
async function removeExpired(env: Env, key: ExpiryKey): Promise<boolean> {
  const [keepUntil, name, id] = key;
  const table = env.tables[name];
  const found = env.readFresh(() => table.getEntry(id));
  if (found === undefined) {
    await env.writeQueue.write({
      purpose: 'sweep',
      bytes: 0,
      change: () => table.ifNoExists(id, () => void env.expiry.remove(key)),
    });
    return false;
  }
  const stored = name === 'revocations' ? unpack(found.value) : parseRecord(name, id, found.value);
  const isUnchanged = stored.keepUntil === keepUntil;
  const indexKey = 'record' in stored ? getIdentityIndexKey(name, id, stored.record) : undefined;
  const done = await env.writeQueue.write({
    purpose: 'sweep',
    bytes: 0,
    change: () =>
      table.ifVersion(id, found.version ?? 0, () => {
        if (isUnchanged) void table.remove(id);
        if (isUnchanged && indexKey !== undefined) void env.identityIndex.remove(indexKey);
        void env.expiry.remove(key);
      }),
  });
  return done && isUnchanged;
}
