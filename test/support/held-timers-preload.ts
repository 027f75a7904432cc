/**
 * Preloaded into a process under test (held-timers.ts): timers with the given durations do not expire by themselves; SIGCONT
 * expires the pending ones.
 */
import { syncBuiltinESMExports } from 'node:module';
import timers from 'node:timers/promises';

const lengths = new Set(new URL(import.meta.url).searchParams.getAll('ms').map(Number));
const isHeld = (ms: unknown): boolean => lengths.has(Number(ms));
const { setTimeout: start, clearTimeout: clear } = globalThis;
const { setTimeout: sleep } = timers;
const after = AbortSignal.timeout.bind(AbortSignal);
/** Node's maximum delay. */
const LONGEST = 2 ** 31 - 1;
const held = new Map<unknown, () => void>();

const hold = (callback: (...values: unknown[]) => void, ms?: number, ...values: unknown[]) => {
  if (!isHeld(ms)) return start(callback, ms, ...values);
  // A held timer must not keep the process running.
  const timer = start(() => {}, LONGEST).unref();
  held.set(timer, () => callback(...values));
  return timer;
};
const release = (timer: Parameters<typeof clear>[0]): void => {
  held.delete(timer);
  clear(timer);
};
Object.assign(globalThis, { setTimeout: hold, clearTimeout: release });
Object.assign(timers, {
  setTimeout: (ms?: number, value?: unknown, options?: object) =>
    isHeld(ms) ? new Promise((resolve) => hold(resolve, ms, value)) : sleep(ms, value, options),
});
syncBuiltinESMExports();
AbortSignal.timeout = (ms) => (isHeld(ms) ? new AbortController().signal : after(ms));

process.on('SIGCONT', () => {
  // Timers started by these callbacks are held again.
  const due = new Map(held);
  for (const [timer, expire] of due) {
    release(timer as NodeJS.Timeout);
    expire();
  }
});
