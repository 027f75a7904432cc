import type { Epoch } from '../domain/epoch.ts';
import { Fault } from '../ports/fault.ts';

/**
 * All writes of a process pass here, a batch at a time: while one transaction is being flushed the next writes
 * gather, so that one flush serves many of them. LMDB runs without `overlappingSync`, so a write that has
 * resolved is on disk. A write never waits without end, and the line that waits has a length.
 */
export interface WriteLine {
  /** Hands a conditional change to LMDB; true when its condition held. */
  write(change: () => Promise<boolean>): Promise<boolean>;
  /** When writing worked again after it had failed; 0 when it never failed. */
  recoveredAt(): Epoch;
  /** Takes no more writes; resolves when those under way have ended, or after `waitMs`. */
  close(waitMs: number): Promise<void>;
}

const MAX_BATCH = 512;
const MAX_WAITING = 50_000;
const FLUSH_LIMIT_MS = 10_000;
/** After a failure the same answer is given for this long: a full disk is not asked thousands of times a second. */
const REST_MS = 100;

interface Waiting {
  readonly change: () => Promise<boolean>;
  readonly resolve: (held: boolean) => void;
  readonly reject: (fault: Fault) => void;
}

export function writeLine(now: () => Epoch, isDiskFull: () => boolean): WriteLine {
  let waiting: Waiting[] = [];
  let running: Promise<void> | undefined;
  let closed = false;
  let failure: { readonly fault: Fault; readonly at: number } | undefined;
  let recovered: Epoch = 0;

  const refuseAll = (fault: Fault): void => {
    const refused = waiting;
    waiting = [];
    for (const one of refused) one.reject(fault);
  };

  const pump = async (): Promise<void> => {
    const batch = waiting.slice(0, MAX_BATCH);
    waiting = waiting.slice(MAX_BATCH);
    const limit = setTimeout(() => {
      const fault = new Fault(
        'store_unavailable',
        `the disk did not confirm a write in ${FLUSH_LIMIT_MS / 1000} s`,
      );
      failure = { fault, at: Number.POSITIVE_INFINITY };
      for (const one of batch) one.reject(fault);
      refuseAll(fault);
    }, FLUSH_LIMIT_MS);
    let worked = false;
    let failed: Fault | undefined;
    await Promise.all(
      batch.map(async ({ change, resolve, reject }) => {
        try {
          resolve(await change());
          worked = true;
        } catch (error) {
          const fault = await faultOf(error, isDiskFull);
          failed = fault;
          reject(fault);
        }
      }),
    );
    clearTimeout(limit);
    if (failed !== undefined) failure = { fault: failed, at: performance.now() };
    else if (worked && failure !== undefined) {
      failure = undefined;
      recovered = now();
    }
  };

  const run = async (): Promise<void> => {
    while (waiting.length > 0) {
      // A turn of the event loop, so that everyone answered by the last batch can join this one.
      await new Promise(setImmediate);
      await pump();
    }
    running = undefined;
  };

  return {
    write(change) {
      if (closed) return Promise.reject(new Fault('store_unavailable', 'the store is closed'));
      if (failure !== undefined && performance.now() < failure.at + REST_MS)
        return Promise.reject(failure.fault);
      if (waiting.length >= MAX_WAITING)
        return Promise.reject(new Fault('overloaded', 'too many writes are waiting for the disk'));
      const written = new Promise<boolean>((resolve, reject) => {
        waiting.push({ change, resolve, reject });
      });
      running ??= run();
      return written;
    },
    recoveredAt: () => recovered,
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

const MDB_MAP_FULL = -30792;
const MDB_CORRUPTED = -30796;
const MDB_PAGE_NOTFOUND = -30797;
const EIO = 5;
const ENOSPC = 28;
const EDQUOT = 122;

/** lmdb rejects a write with "Commit failed" and tells the reason in a second promise, which must be listened to. */
async function faultOf(error: unknown, isDiskFull: () => boolean): Promise<Fault> {
  if (error instanceof Fault) return error;
  const reason = await reasonOf(error);
  const code = reason instanceof Error && 'code' in reason ? reason.code : undefined;
  const full = (): Fault =>
    new Fault('store_full', 'the store has no space left to write', { cause: reason, retryAfter: 5 });
  switch (code) {
    case ENOSPC:
    case EDQUOT:
    case MDB_MAP_FULL:
      return full();
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
      return new Fault('store_corrupt', 'the store met a damaged page; restore a backup', { cause: reason });
    case EIO:
    default:
      // A write that a full disk cut short is reported as EIO.
      return isDiskFull()
        ? full()
        : new Fault('store_unavailable', 'the store could not write', { cause: reason });
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
