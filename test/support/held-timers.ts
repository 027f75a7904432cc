import type { ServeProcess, StartOptions } from './serve-process.ts';

const PRELOAD = new URL('held-timers-preload.ts', import.meta.url).href;

/**
 * In the program and its workers, timers of these lengths expire when the test says so (`expireTimers`), however slow the
 * machine is; others are not affected.
 */
export const holdTimers = (
  ...milliseconds: readonly number[]
): Required<Pick<StartOptions, 'nodeOptions'>> => ({
  nodeOptions: ['--import', `${PRELOAD}?${milliseconds.map((ms) => `ms=${ms}`).join('&')}`],
});

/** Expires the timers that are held in the processes that serve requests. */
export function expireTimers({ pid, workers }: Pick<ServeProcess, 'pid' | 'workers'>): void {
  for (const one of workers.length > 0 ? workers : [pid]) process.kill(one, 'SIGCONT');
}
