import type { Epoch } from '../domain/epoch.ts';
import { Fault } from '../ports/fault.ts';
import type { Env, ExpiryKey } from './embedded-env.ts';
import { holderKey, unseal } from './embedded-records.ts';
import { unpack } from './embedded-revocations.ts';

const BATCH = 200;

/**
 * Removes what has ended, in the order of its end, a small batch at a time with room for others in between.
 * Returns how many records are gone. Readers do not wait for this: for them a record ends at its time.
 */
export async function sweep(env: Env, now: () => Epoch, isClosing: () => boolean): Promise<number> {
  let removed = 0;
  let size = BATCH;
  while (!isClosing()) {
    const due = env.fresh(() => dueKeys(env, now(), size));
    if (due.length === 0) break;
    const outcomes = await Promise.allSettled(due.map((key) => forget(env, key)));
    removed += outcomes.filter((outcome) => outcome.status === 'fulfilled' && outcome.value).length;
    const failure = outcomes.find((outcome) => outcome.status === 'rejected');
    if (failure !== undefined) {
      // Removing needs some space too; with less of it, fewer at a time.
      if (!(failure.reason instanceof Fault && failure.reason.code === 'store_full') || size === 1)
        throw failure.reason;
      size = Math.ceil(size / 4);
      await new Promise((resolve) => setTimeout(resolve, 150));
    }
    await new Promise(setImmediate);
  }
  return removed;
}

/** How much faster than the machine's steady clock forgetting may go on, to catch up after a suspension. */
const CATCH_UP = 60;

/**
 * The time as far as it may be trusted for forgetting. A clock that is wrong by a year for a minute would have every
 * revocation swept, and set right again the revoked tokens would work; so this one follows `now` only gradually.
 */
export function patientClock(
  now: () => Epoch,
  steadyMs: () => number = () => performance.now(),
): () => Epoch {
  let trusted = now();
  let looked = steadyMs();
  return () => {
    const passed = (steadyMs() - looked) / 1_000;
    looked += passed * 1_000;
    trusted = Math.min(now(), trusted + passed * CATCH_UP);
    return trusted;
  };
}

function dueKeys(env: Env, at: Epoch, limit: number): readonly ExpiryKey[] {
  const due: ExpiryKey[] = [];
  for (const key of env.expiry.getKeys({ limit })) {
    if (key[0] > at) break;
    due.push(key);
  }
  return due;
}

/** True when a record went. Conditional on what was seen, so a record made anew in the meantime stays. */
async function forget(env: Env, key: ExpiryKey): Promise<boolean> {
  const [keepUntil, name, id] = key;
  const table = env.tables[name];
  const found = env.fresh(() => table.getEntry(id));
  if (found === undefined) {
    await env.writes.write({
      purpose: 'sweep',
      bytes: 0,
      change: () => table.ifNoExists(id, () => void env.expiry.remove(key)),
    });
    return false;
  }
  const kept = name === 'revocations' ? unpack(found.value) : unseal(name, found.value);
  const isIt = kept.keepUntil === keepUntil;
  const holder = 'record' in kept ? holderKey(name, id, kept.record) : undefined;
  const done = await env.writes.write({
    purpose: 'sweep',
    bytes: 0,
    change: () =>
      table.ifVersion(id, found.version ?? 0, () => {
        if (isIt) void table.remove(id);
        if (isIt && holder !== undefined) void env.holders.remove(holder);
        void env.expiry.remove(key);
      }),
  });
  return done && isIt;
}
