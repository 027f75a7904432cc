// A test may have stopped the clock: waits for I/O go on.
const { setTimeout } = globalThis;
const now = performance.now.bind(performance);

type Found<T> = Exclude<T, false | undefined | null | 0 | ''>;

/**
 * Waits for a condition that no event announces. The seconds are a deadline for a starved machine and promise nothing;
 * whether the promised time was kept is asserted by the test itself.
 */
export async function until<T>(
  what: string,
  check: () => T | Promise<T>,
  seconds: number = 30,
): Promise<Found<T>> {
  const end = now() + seconds * 1_000;
  for (;;) {
    const found = await check();
    if (found) return found as Found<T>;
    if (now() > end) throw new Error(`gave up after ${seconds} s waiting until ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** Waits for conditions on what arrives by events: `wake` after each of them. `describe` is part of the failure message. */
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
