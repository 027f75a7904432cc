import { Fault } from '../ports/fault.ts';
import type { Batch, Reserve } from './embedded-reserve.ts';

/**
 * All writes of a process pass here, a batch at a time: while one transaction is being flushed the next writes
 * gather, so that one flush serves many of them. LMDB runs without `overlappingSync`, so a write that has
 * resolved is on disk. A write never waits without end, and the line that waits has a length.
 */
export interface WriteLine {
  /** Hands a conditional change to LMDB; true when its condition held. */
  write(write: Write): Promise<boolean>;
  /** Takes no more writes; resolves when those under way have ended, or after `waitMs`. */
  close(waitMs: number): Promise<void>;
}

export interface Write {
  readonly change: () => Promise<boolean>;
  readonly bytes: number;
  readonly purpose: Purpose;
}

/**
 * When space runs out, new records are refused first, then rotations, then revocations. Removing records is refused
 * last, since it makes space.
 */
const LEAVES = { new: 1, upkeep: 0.25, revoke: 0.125, sweep: 0 } as const;
const PURPOSES = ['new', 'upkeep', 'revoke', 'sweep'] as const;
type Purpose = keyof typeof LEAVES;

const MAX_BATCH = 256;
const MAX_WAITING = 50_000;
/** From handing in a write to its flush, the time in the queue included. */
const FLUSH_LIMIT_MS = 10_000;
const CHECK_MS = 250;
/** After a failure the same answer is given for this long: a full disk is not asked thousands of times a second. */
const REST_MS = 100;

interface Waiting extends Write {
  readonly handedIn: number;
  readonly resolve: (held: boolean) => void;
  readonly reject: (fault: Fault) => void;
}

export function writeLine(space: Pick<Reserve, 'fits'>): WriteLine {
  let waiting: Waiting[] = [];
  let running: Promise<void> | undefined;
  let closed = false;
  const failures: Partial<Record<Purpose, { readonly fault: Fault; at: number }>> = {};

  const failed = (purpose: Purpose, fault: Fault, at: number): void => {
    failures[purpose] = { fault, at };
  };

  const send = async (batch: readonly Waiting[]): Promise<void> => {
    await Promise.all(
      batch.map(async ({ change, purpose, resolve, reject }) => {
        try {
          resolve(await change());
          delete failures[purpose];
        } catch (error) {
          const fault = await faultOf(error);
          failed(purpose, fault, performance.now());
          reject(fault);
        }
      }),
    );
  };

  /** The part of a batch there is space for; the rest is refused, the least useful first. */
  const fitting = async (batch: readonly Waiting[]): Promise<readonly Waiting[]> => {
    const refuse = (refused: readonly Waiting[], fault: Fault): void => {
      for (const { purpose, reject } of refused) {
        failed(purpose, fault, performance.now());
        reject(fault);
      }
    };
    let left = batch;
    try {
      for (const first of PURPOSES) {
        const ofThis = left.filter(({ purpose }) => purpose === first);
        if (ofThis.length === 0) continue;
        if (await space.fits(sizeOf(left, LEAVES[first]))) return left;
        refuse(ofThis, fullFault());
        left = left.filter(({ purpose }) => purpose !== first);
      }
    } catch (error) {
      refuse(left, await faultOf(error));
    }
    return [];
  };

  /**
   * Making space and flushing have a time limit. Writes that wait beyond it are refused; once a batch is over it, so are
   * all others until the batch has ended.
   */
  const handle = async (batch: readonly Waiting[]): Promise<void> => {
    const began = performance.now();
    const late = new Set<Waiting>();
    let hasEnded = false;
    const refuseLate = (): void => {
      if (hasEnded) return;
      const limit = performance.now() - FLUSH_LIMIT_MS;
      const isStalled = began <= limit;
      const fault = flushFault();
      if (isStalled) for (const purpose of PURPOSES) failed(purpose, fault, Number.POSITIVE_INFINITY);
      for (const one of [...batch, ...waiting]) if (isStalled || one.handedIn <= limit) late.add(one);
      for (const one of late) one.reject(fault);
      waiting = waiting.filter((one) => !late.has(one));
    };
    // In the check phase: after a stall of the event loop, what was flushed meanwhile is seen first.
    const timer = setInterval(() => setImmediate(refuseLate), CHECK_MS);
    const fit = await fitting(batch);
    await send(fit.filter((one) => !late.has(one)));
    clearInterval(timer);
    hasEnded = true;
    // The disk answers again, to every purpose: also to those that had nothing in this batch.
    for (const failure of Object.values(failures)) failure.at = Math.min(failure.at, performance.now());
  };

  const run = async (): Promise<void> => {
    while (waiting.length > 0) {
      // A turn of the event loop, so that everyone answered by the last batch can join this one.
      await new Promise(setImmediate);
      const batch = waiting.slice(0, MAX_BATCH);
      waiting = waiting.slice(MAX_BATCH);
      await handle(batch);
    }
    running = undefined;
  };

  return {
    write(write) {
      if (closed) return Promise.reject(new Fault('store_unavailable', 'the store is closed'));
      const failure = failures[write.purpose];
      if (failure !== undefined && performance.now() < failure.at + REST_MS)
        return Promise.reject(failure.fault);
      if (waiting.length >= MAX_WAITING)
        return Promise.reject(new Fault('overloaded', 'too many writes are waiting for the disk'));
      const written = new Promise<boolean>((resolve, reject) => {
        waiting.push({ ...write, resolve, reject, handedIn: performance.now() });
      });
      running ??= run();
      return written;
    },
    async close(waitMs) {
      closed = true;
      let timer: NodeJS.Timeout | undefined;
      const longEnough = new Promise((resolve) => {
        timer = setTimeout(resolve, waitMs);
      });
      await Promise.race([running, longEnough]);
      clearTimeout(timer);
    },
  };
}

const sizeOf = (batch: readonly Write[], leave: number): Batch => ({
  writes: batch.length,
  bytes: batch.reduce((sum, { bytes }) => sum + bytes, 0),
  largest: batch.reduce((most, { bytes }) => Math.max(most, bytes), 0),
  leave,
});

const flushFault = (): Fault =>
  new Fault('store_unavailable', `the disk did not confirm a write in ${FLUSH_LIMIT_MS / 1000} s`);

const fullFault = (cause?: unknown): Fault =>
  new Fault('store_full', 'the store has no space left to write', { cause, retryAfter: 5 });

const MDB_MAP_FULL = -30792;
const MDB_CORRUPTED = -30796;
const MDB_PAGE_NOTFOUND = -30797;
const ENOSPC = 28;
const EDQUOT = 122;

/** lmdb rejects a write with "Commit failed" and tells the reason in a second promise, which must be listened to. */
async function faultOf(error: unknown): Promise<Fault> {
  if (error instanceof Fault) return error;
  const reason = await reasonOf(error);
  const code = reason instanceof Error && 'code' in reason ? reason.code : undefined;
  switch (code) {
    case ENOSPC:
    case EDQUOT:
    case MDB_MAP_FULL:
      return fullFault(reason);
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
      return new Fault('store_corrupt', 'the store met a damaged page; restore a backup', { cause: reason });
    default:
      return new Fault('store_unavailable', 'the store could not write', { cause: reason });
  }
}

async function reasonOf(rejection: unknown): Promise<unknown> {
  if (!(rejection instanceof Error) || !('commitError' in rejection)) return rejection;
  let timer: NodeJS.Timeout | undefined;
  const noAnswer = new Promise<unknown>((resolve) => {
    timer = setTimeout(resolve, 1000, rejection);
  });
  try {
    return await Promise.race([rejection.commitError, noAnswer]);
  } catch (reason) {
    return reason;
  } finally {
    clearTimeout(timer);
  }
}
