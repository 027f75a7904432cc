import { mkdirSync, writeFileSync } from 'node:fs';
import { cpus } from 'node:os';
import { join } from 'node:path';

/** `npm run test:chaos` runs the full form, `npm test` the short one. Single figures can be set: `KILLS=10`. */
export const isFull = process.env['CHAOS'] === 'full';

export function count(name: string, short: number, full: number): number {
  const given = process.env[name];
  return given === undefined ? (isFull ? full : short) : Number(given);
}

export const SEED = Number(process.env['SEED'] ?? Math.floor(Date.now() / 1_000));

/** mulberry32: the same course of events for the same seed, as far as processes let it. */
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

export type Figures = Readonly<Record<string, number | string>>;

/** Prints what was measured, and keeps it as JSON beside the tests (not in the repository). */
export function report(name: string, figures: Figures): void {
  const width = Math.max(...Object.keys(figures).map((key) => key.length));
  const lines = Object.entries(figures).map(([key, value]) => `  ${key.padEnd(width)}  ${value}`);
  console.info([`${name} (${isFull ? 'full' : 'short'} form)`, ...lines].join('\n'));
  const folder = join(import.meta.dirname, 'results');
  mkdirSync(folder, { recursive: true });
  const machine = `${cpus().length} × ${cpus()[0]?.model ?? 'unknown'}`;
  const written = {
    name,
    form: isFull ? 'full' : 'short',
    date: new Date().toISOString(),
    machine,
    figures,
  };
  writeFileSync(join(folder, `${name}.json`), `${JSON.stringify(written, null, 2)}\n`);
}

export function percentile(sorted: readonly number[], part: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? Number.NaN;
}

/** So many workers at once take the tasks one after another. */
export async function spread<T>(
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
        // Whoever fails ends it for all.
        next = tasks.length;
      }
    }),
  );
}

/** What was opened is closed in turn, the last first, also when not everything could be opened. */
export function closer(): { add(close: () => unknown): void; closeAll(): Promise<void> } {
  const closes: (() => unknown)[] = [];
  return {
    add: (close) => void closes.push(close),
    async closeAll() {
      for (const close of closes.toReversed()) await close();
    },
  };
}
