import { largest } from '../../lib/extremes.ts';
import { withTimeout } from '../../lib/promises.ts';
import { Fault } from '../../ports/fault.ts';
import type { Batch } from './disk-reserve.ts';

export interface Write {
  readonly change: () => Promise<boolean>;
  readonly bytes: number;
  readonly purpose: Purpose;
}

/**
 * When space runs out, new records are rejected first, then rotations, then revocations. Removing records is rejected last,
 * since it frees space.
 */
const RESERVE_SHARES = { new: 1, update: 0.25, revoke: 0.125, sweep: 0 } as const;
type Purpose = keyof typeof RESERVE_SHARES;
const PURPOSES = Object.keys(RESERVE_SHARES) as Purpose[];

const MAX_BATCH = 256;
const MAX_QUEUED = 50_000;
/** Including the time in the queue. */
const FLUSH_TIMEOUT_MS = 10_000;
const CHECK_INTERVAL_MS = 250;
/** After a failure, writes are rejected for this long without trying the disk. */
const FAILURE_BACKOFF_MS = 100;

interface QueuedWrite extends Write {
  readonly queuedAt: number;
  readonly resolve: (conditionHeld: boolean) => void;
  readonly reject: (fault: Fault) => void;
}

/**
 * Writes in batches: while one transaction is flushed, the next writes are queued, so that one flush serves many. LMDB runs
 * without `overlappingSync`, so a resolved write is on disk. The queue is bounded, and every write has a timeout.
 */
export class WriteQueue {
  readonly #reserve: { ensureSpace(batch: Batch): Promise<boolean> };
  readonly #failures: Partial<Record<Purpose, { readonly fault: Fault; at: number }>> = {};
  #queue: QueuedWrite[] = [];
  #running: Promise<void> | undefined;
  #closed = false;

  constructor(reserve: { ensureSpace(batch: Batch): Promise<boolean> }) {
    this.#reserve = reserve;
  }

  /** True when the condition of the change held. */
  async write(write: Write): Promise<boolean> {
    if (this.#closed) throw new Fault('store_unavailable', 'the store is closed');
    const failure = this.#failures[write.purpose];
    if (failure !== undefined && performance.now() < failure.at + FAILURE_BACKOFF_MS) throw failure.fault;
    if (this.#queue.length >= MAX_QUEUED) throw new Fault('overloaded', 'too many writes are waiting for the disk');
    return new Promise((resolve, reject) => {
      this.#queue.push({ ...write, resolve, reject, queuedAt: performance.now() });
      this.#running ??= this.#drain();
    });
  }

  /** Rejects further writes; resolves when the queued ones have ended, or after the timeout. */
  async close(timeoutMs: number): Promise<void> {
    this.#closed = true;
    await withTimeout(Promise.resolve(this.#running), timeoutMs, () => {});
  }

  async #drain(): Promise<void> {
    while (this.#queue.length > 0) {
      // Lets callers whose write was in the last batch join this one.
      await new Promise(setImmediate);
      const batch = this.#queue.slice(0, MAX_BATCH);
      this.#queue = this.#queue.slice(MAX_BATCH);
      await this.#processBatch(batch);
    }
    this.#running = undefined;
  }

  /** Rejects writes that time out. While a batch is past its timeout, all others are rejected as well. */
  async #processBatch(batch: readonly QueuedWrite[]): Promise<void> {
    const startedAt = performance.now();
    const timedOut = new Set<QueuedWrite>();
    let hasEnded = false;
    const rejectTimedOut = (): void => {
      if (hasEnded) return;
      const cutoff = performance.now() - FLUSH_TIMEOUT_MS;
      const isStalled = startedAt <= cutoff;
      const fault = new Fault('store_unavailable', `the disk did not confirm a write in ${FLUSH_TIMEOUT_MS / 1000} s`);
      if (isStalled) for (const purpose of PURPOSES) this.#failures[purpose] = { fault, at: Number.POSITIVE_INFINITY };
      for (const write of [...batch, ...this.#queue]) if (isStalled || write.queuedAt <= cutoff) timedOut.add(write);
      for (const { reject } of timedOut) reject(fault);
      this.#queue = this.#queue.filter((write) => !timedOut.has(write));
    };
    // In the check phase: after an event-loop stall, completed flushes are processed first.
    const timer = setInterval(() => setImmediate(rejectTimedOut), CHECK_INTERVAL_MS);
    const accepted = await this.#selectFitting(batch);
    await Promise.all(accepted.filter((write) => !timedOut.has(write)).map((write) => this.#apply(write)));
    clearInterval(timer);
    hasEnded = true;
    // The disk works again, also for purposes that were not in this batch.
    for (const failure of Object.values(this.#failures)) failure.at = Math.min(failure.at, performance.now());
  }

  /** The part of a batch that fits; the rest is rejected, the least important first. */
  async #selectFitting(batch: readonly QueuedWrite[]): Promise<readonly QueuedWrite[]> {
    let remaining = batch;
    try {
      for (const first of PURPOSES) {
        const samePurpose = remaining.filter(({ purpose }) => purpose === first);
        if (samePurpose.length === 0) continue;
        if (await this.#reserve.ensureSpace(measureBatch(remaining, RESERVE_SHARES[first]))) return remaining;
        this.#rejectAll(samePurpose, fullFault());
        remaining = remaining.filter(({ purpose }) => purpose !== first);
      }
    } catch (error) {
      this.#rejectAll(remaining, await toFault(error));
    }
    return [];
  }

  async #apply(write: QueuedWrite): Promise<void> {
    try {
      write.resolve(await write.change());
      delete this.#failures[write.purpose];
    } catch (error) {
      this.#rejectAll([write], await toFault(error));
    }
  }

  #rejectAll(writes: readonly QueuedWrite[], fault: Fault): void {
    for (const { purpose, reject } of writes) {
      this.#failures[purpose] = { fault, at: performance.now() };
      reject(fault);
    }
  }
}

const measureBatch = (batch: readonly Write[], reserveShare: number): Batch => ({
  writes: batch.length,
  bytes: batch.reduce((sum, { bytes }) => sum + bytes, 0),
  largest: largest(batch.map(({ bytes }) => bytes)),
  reserveShare,
});

const fullFault = (cause?: unknown): Fault =>
  new Fault('store_full', 'the store has no space left to write', { cause, retryAfter: 5 });

const COMMIT_ERROR_TIMEOUT_MS = 1_000;

const MDB_MAP_FULL = -30792;
const MDB_CORRUPTED = -30796;
const MDB_PAGE_NOTFOUND = -30797;
const ENOSPC = 28;
const EDQUOT = 122;

/** lmdb rejects a write with "Commit failed"; the reason is in a second promise, which must be handled. */
async function toFault(error: unknown): Promise<Fault> {
  if (error instanceof Fault) return error;
  const reason = await readCommitError(error);
  const code = reason instanceof Error && 'code' in reason ? Number(reason.code) : 0;
  if ([ENOSPC, EDQUOT, MDB_MAP_FULL].includes(code)) return fullFault(reason);
  return [MDB_CORRUPTED, MDB_PAGE_NOTFOUND].includes(code)
    ? new Fault('store_corrupt', 'the store contains a damaged page; restore a backup', { cause: reason })
    : new Fault('store_unavailable', 'writing to the store failed', { cause: reason });
}

async function readCommitError(rejection: unknown): Promise<unknown> {
  if (!(rejection instanceof Error) || !('commitError' in rejection)) return rejection;
  try {
    return await withTimeout(Promise.resolve(rejection.commitError), COMMIT_ERROR_TIMEOUT_MS, () => rejection);
  } catch (reason) {
    return reason;
  }
}
