import type { Epoch } from '../../domain/epoch.ts';
import { Fault } from '../../ports/fault.ts';
import type { Env, ExpiryKey } from './env.ts';
import { getIdentityIndexKey, parseRecord } from './records.ts';
import { unpack } from './revocations.ts';

const BATCH_SIZE = 200;

/**
 * Removes expired records in the order of their expiry, in small batches that let other writes proceed. Returns how many.
 * Readers do not depend on it: they ignore expired records.
 */
export async function sweep(env: Env, now: () => Epoch, isClosing: () => boolean): Promise<number> {
  let removed = 0;
  let size = BATCH_SIZE;
  while (!isClosing()) {
    const due = env.readFresh(() => readDueKeys(env, now(), size));
    if (due.length === 0) break;
    const outcomes = await Promise.allSettled(due.map((key) => removeExpired(env, key)));
    removed += outcomes.filter((outcome) => outcome.status === 'fulfilled' && outcome.value).length;
    const failure = outcomes.find((outcome) => outcome.status === 'rejected');
    if (failure !== undefined) {
      // Removing needs some space too: try a smaller batch.
      if (!(failure.reason instanceof Fault && failure.reason.code === 'store_full') || size === 1)
        throw failure.reason;
      size = Math.ceil(size / 4);
      await new Promise((resolve) => setTimeout(resolve, 150));
    }
    await new Promise(setImmediate);
  }
  return removed;
}

/** How much faster than the monotonic clock the time may advance, to catch up after a suspension. */
const MAX_CATCH_UP_RATE = 60;

/**
 * The time for sweeping. If the clock were a year ahead for a minute, all revocations would be swept, and revoked tokens
 * would be valid again once it is corrected; so this one follows `now` gradually.
 */
export function createSlewedClock(
  now: () => Epoch,
  monotonicMs: () => number = () => performance.now(),
): () => Epoch {
  let slewedTime = now();
  let lastReadMs = monotonicMs();
  return () => {
    const elapsed = (monotonicMs() - lastReadMs) / 1_000;
    lastReadMs += elapsed * 1_000;
    slewedTime = Math.min(now(), slewedTime + elapsed * MAX_CATCH_UP_RATE);
    return slewedTime;
  };
}

function readDueKeys(env: Env, at: Epoch, limit: number): readonly ExpiryKey[] {
  const due: ExpiryKey[] = [];
  for (const key of env.expiry.getKeys({ limit })) {
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
