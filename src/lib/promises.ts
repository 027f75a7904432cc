import { setTimeout as sleep } from 'node:timers/promises';

/** Awaits `work` for a limited time, after which `onTimeout` returns a substitute or throws. */
export async function withTimeout<T>(work: Promise<T>, timeoutMs: number, onTimeout: () => T): Promise<T> {
  const controller = new AbortController();
  const timeout = sleep(timeoutMs, undefined, { signal: controller.signal }).then(onTimeout);
  try {
    return await Promise.race([work, timeout]);
  } finally {
    controller.abort();
  }
}

/** Runs `work` once at a time; calls meanwhile share its result. */
export function singleFlight<Args extends readonly unknown[], T>(
  work: (...args: Args) => Promise<T>,
): (...args: Args) => Promise<T> {
  let running: Promise<T> | undefined;
  return (...args) => {
    running ??= work(...args).finally(() => {
      running = undefined;
    });
    return running;
  };
}
