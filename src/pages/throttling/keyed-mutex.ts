import { Fault } from '../../ports/fault.ts';

interface KeyedMutexLimits {
  /** Per key. */
  readonly maxQueued: number;
  readonly timeoutSeconds: number;
}

/**
 * Runs tasks with the same key one after another. Without it, concurrent guesses would all pass a limit that is checked
 * before and counted after each guess.
 */
export function createKeyedMutex({ maxQueued, timeoutSeconds }: KeyedMutexLimits) {
  const queues = new Map<string, { tail: Promise<unknown>; length: number }>();
  return {
    async runExclusive<T>(key: string, task: () => Promise<T>): Promise<T> {
      const queue = queues.get(key) ?? { tail: Promise.resolve(), length: 0 };
      if (queue.length >= maxQueued)
        throw new Fault('overloaded', 'too many requests are queued for one session or device request');
      queues.set(key, queue);
      queue.length += 1;
      const queuedAt = performance.now();
      const run = queue.tail.then(() => {
        if (performance.now() - queuedAt > timeoutSeconds * 1_000)
          throw new Fault('overloaded', 'timed out waiting for earlier requests of the same session or device request');
        return task();
      });
      queue.tail = run.catch(() => {});
      try {
        return await run;
      } finally {
        queue.length -= 1;
        if (queue.length === 0) queues.delete(key);
      }
    },
  };
}
