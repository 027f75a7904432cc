import type { SettingsInput } from '../../src/config/schema.ts';

/** The `.full.test.ts` files use small counts, `npm run test:chaos` large ones. Single counts can be set: `KILLS=10`. */
const isLong = process.env['CHAOS'] === 'full';

export function count(name: string, some: number, many: number): number {
  return Number(process.env[name] ?? (isLong ? many : some));
}

export const SEED = Number(process.env['SEED'] ?? Math.floor(Date.now() / 1_000));

/** mulberry32; the same numbers for the same seed. */
export function randomFrom(seed: number): () => number {
  let state = seed | 0;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

export const pick = <T>(random: () => number, from: readonly T[]): T => {
  const found = from[Math.floor(random() * from.length)];
  if (found === undefined) throw new RangeError('nothing to pick from');
  return found;
};

export function percentile(sorted: readonly number[], part: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? Number.NaN;
}

/** Runs the tasks with a limited number of concurrent workers. */
export async function runConcurrently<T>(
  tasks: readonly T[],
  workers: number,
  work: (task: T, index: number) => Promise<void>,
): Promise<void> {
  let next = 0;
  await Promise.all(
    Array.from({ length: workers }, async () => {
      try {
        while (next < tasks.length) {
          const index = next;
          next += 1;
          await work(tasks[index] as T, index);
        }
      } finally {
        // A failure stops all workers.
        next = tasks.length;
      }
    }),
  );
}

/** Collects cleanups and runs them in reverse order, also if the setup failed halfway. */
export function createCloser(): { add(close: () => unknown): void; closeAll(): Promise<void> } {
  const cleanups: (() => unknown)[] = [];
  return {
    add: (close) => void cleanups.push(close),
    async closeAll() {
      for (const close of cleanups.toReversed()) await close();
    },
  };
}

/** The longest `tokens.refresh.retryWindow`. */
const RETRY_WINDOW_SECONDS = 60;
const MAX_RETRY_SECONDS = RETRY_WINDOW_SECONDS - 10;

/** For clients that retry a refresh of unknown outcome: it may be stored. */
export const withRetryWindow = (settings: SettingsInput): SettingsInput => ({
  ...settings,
  tokens: { ...settings.tokens, refresh: { retryWindow: `${RETRY_WINDOW_SECONDS}s` } },
});

/** A retry this long after the first attempt may rightly be treated as reuse. Only a machine that hardly runs is so slow. */
export const isTooLateToRetry = (presentedAt: number | undefined): boolean =>
  presentedAt !== undefined && performance.now() - presentedAt > MAX_RETRY_SECONDS * 1_000;
