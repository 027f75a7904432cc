import { closeSync, fstatSync, openSync, statfsSync, write } from 'node:fs';
import { promisify } from 'node:util';
import { largest } from '../../lib/extremes.ts';
import { withTimeout } from '../../lib/promises.ts';
import { Fault } from '../../ports/fault.ts';
import type { StoreFiles } from './folder.ts';

interface Write {
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

export interface Batch {
  readonly writes: number;
  readonly bytes: number;
  /** The largest record in it. */
  readonly largest: number;
  /** How much of the spare space must remain: less for more important writes. */
  readonly reserveShare: number;
}

export interface PageStats {
  read(): { readonly lastPageNumber: number; readonly pageSize: number };
  /** Pages of removed records and old versions, which LMDB reuses before it allocates new ones. */
  countFree(): number;
  /** Pages freed since the snapshot of a reader cannot be reused yet. */
  hasStaleReaders(): boolean;
}

const SPARE_BYTES = 4 * 2 ** 20;
const MAX_GROW_BYTES = 32 * 2 ** 20;
const ZEROS = Buffer.alloc(2 ** 20);
/** The two trees that a write changes, from root to leaf, including page splits. */
const PAGES_PER_WRITE = 12;
/** The free list and the tree of tables. */
const PAGES_PER_BATCH = 32;
/** Larger records need contiguous pages, which free pages seldom are. */
const MAX_INLINE_BYTES = 1500;
/** Some free pages were freed too recently to be reused, and other workers use them too. */
const FREE_MARGIN = 8;

const writeFd = promisify(write);

/**
 * Allocated space at the end of the data file. LMDB must not encounter a full disk itself: lmdb 3.5.6 writes the error
 * message past the end of a buffer and corrupts the heap. So the file is kept longer than needed, and a batch that might
 * not fit is rejected before it reaches LMDB.
 */
export function openDiskReserve(files: StoreFiles, pages: PageStats) {
  // In append mode, zeros never overwrite a page that another worker has just written.
  const fd = openSync(files.data, 'a', 0o600);
  const disk = statfsSync(files.folder);
  const spareBytes = Math.min(SPARE_BYTES, Math.floor((disk.blocks * disk.bsize) / 8));

  const grow = async (bytes: number): Promise<boolean> => {
    try {
      for (let remaining = bytes; remaining > 0; ) {
        const { bytesWritten } = await writeFd(fd, ZEROS, 0, Math.min(remaining, ZEROS.length), null);
        if (bytesWritten === 0) return false;
        remaining -= bytesWritten;
      }
      return true;
    } catch (error) {
      if (isDiskFullError(error)) return false;
      throw new Fault('store_unavailable', `cannot extend ${files.data}`, { cause: error });
    }
  };

  // At most every existing page, and at most the pages that its writes reach.
  const estimatePages = ({ writes }: Batch, lastPage: number): number =>
    Math.min(writes * PAGES_PER_WRITE, lastPage + 1 + writes) + PAGES_PER_BATCH;

  const estimateBytes = (batch: Batch): number => {
    const { lastPageNumber, pageSize } = pages.read();
    return estimatePages(batch, lastPageNumber) * pageSize + 2 * batch.bytes + batch.reserveShare * spareBytes;
  };

  const computeMissingBytes = (batch: Batch): number => {
    const { lastPageNumber, pageSize } = pages.read();
    return Math.ceil(estimateBytes(batch)) - (fstatSync(fd).size - (lastPageNumber + 1) * pageSize);
  };

  const fitsInFreePages = (batch: Batch): boolean =>
    batch.largest <= MAX_INLINE_BYTES &&
    !pages.hasStaleReaders() &&
    pages.countFree() * pages.read().pageSize >= FREE_MARGIN * estimateBytes(batch);

  return {
    /** Whether there is space for a batch; extends the file if necessary. */
    async ensureSpace(batch: Batch): Promise<boolean> {
      if (COPY_ON_WRITE.includes(disk.type) && !hasFreeSpace(files, batch)) return false;
      const missingBytes = computeMissingBytes(batch);
      if (missingBytes <= 0) return true;
      // In large steps while there is space.
      const step = Math.min(MAX_GROW_BYTES, Math.floor(fstatSync(fd).size / 8));
      if (await grow(missingBytes + step)) return true;
      return computeMissingBytes(batch) <= 0 || fitsInFreePages(batch);
    },
    close: (): void => closeSync(fd),
  };
}

const isDiskFullError = (error: unknown): boolean =>
  error instanceof Error && 'code' in error && ['ENOSPC', 'EDQUOT', 'EFBIG'].includes(String(error.code));

/** On copy-on-write file systems (btrfs, ZFS, bcachefs), rewriting an allocated block needs space too. */
const COPY_ON_WRITE = [0x9123683e, 0x2fc12fc1, 0xca451a4e];

function hasFreeSpace(files: StoreFiles, { writes, bytes }: Batch): boolean {
  const { bavail, bsize } = statfsSync(files.folder);
  return bavail * bsize > 16 * 2 ** 20 + writes * PAGES_PER_WRITE * 4096 + 2 * bytes;
}
