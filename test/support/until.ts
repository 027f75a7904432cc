// Captured here because a test may install fake timers.
const { setTimeout } = globalThis;
const now = performance.now.bind(performance);

type Found<T> = Exclude<T, false | undefined | null | 0 | ''>;

/**
 * Polls until a condition holds. `seconds` is a generous deadline for a busy machine; tests assert documented times
 * themselves.
 */
export async function until<T>(what: string, check: () => T | Promise<T>, seconds: number = 60): Promise<Found<T>> {
  const end = now() + seconds * 1_000;
  for (;;) {
    const found = await check();
    if (found) return found as Found<T>;
    if (now() > end) throw new Error(`gave up after ${seconds} s waiting until ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** Waits for conditions that change with events: call `wake` after each. `describe` is part of the failure message. */
export function createEventWaiter(describe: () => string) {
  const watchers = new Set<() => void>();
  return {
    wake: (): void => watchers.forEach((watch) => watch()),
    until: (condition: () => boolean, ms = 30_000): Promise<void> =>
      new Promise((resolve, reject) => {
        const timer = setTimeout(() => {
          watchers.delete(watch);
          reject(new Error(`gave up after ${ms} ms; ${describe()}`));
        }, ms);
        const watch = (): void => {
          if (!condition()) return;
          clearTimeout(timer);
          watchers.delete(watch);
          resolve();
        };
        watchers.add(watch);
        watch();
      }),
  };
}
