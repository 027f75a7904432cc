import { Fault } from '../ports/fault.ts';

interface ConcurrencyLimiterOptions {
  readonly maxConcurrent: number;
  readonly maxQueued: number;
  readonly queueFullMessage: string;
  /** If omitted, tasks wait without a limit. */
  readonly queueTimeout?: { readonly ms: number; readonly message: string };
}

/** Runs a limited number of tasks at once and queues a limited number; others fail with an `overloaded` fault. */
export function createConcurrencyLimiter(
  options: ConcurrencyLimiterOptions,
): <T>(task: () => Promise<T>) => Promise<T> {
  const { maxConcurrent, maxQueued, queueFullMessage, queueTimeout } = options;
  const queue: (() => void)[] = [];
  let running = 0;
  const waitForSlot = (): Promise<void> =>
    new Promise((resolve, reject) => {
      const start = (): void => {
        clearTimeout(timer);
        resolve();
      };
      const timer =
        queueTimeout &&
        setTimeout(() => {
          queue.splice(queue.indexOf(start), 1);
          reject(createOverloadedFault(queueTimeout.message));
        }, queueTimeout.ms);
      queue.push(start);
    });
  return async (task) => {
    if (running < maxConcurrent) running += 1;
    else if (queue.length < maxQueued) await waitForSlot();
    else throw createOverloadedFault(queueFullMessage);
    try {
      return await task();
    } finally {
      // The next task in the queue takes over the slot.
      const next = queue.shift();
      if (next === undefined) running -= 1;
      else next();
    }
  };
}

const createOverloadedFault = (message: string): Fault => new Fault('overloaded', message, { retryAfter: 2 });
