import type { ServeProcess, StartOptions } from './serve-process.ts';

const PRELOAD = new URL('held-timers-preload.ts', import.meta.url).href;

/**
 * In the process and its workers, timers with these durations expire only when the test calls `expireTimers`; other timers
 * are not affected.
 */
export const holdTimers = (...milliseconds: readonly number[]): Required<Pick<StartOptions, 'nodeOptions'>> => ({
  nodeOptions: ['--import', `${PRELOAD}?${milliseconds.map((ms) => `ms=${ms}`).join('&')}`],
});

/** Expires the held timers in the processes that serve requests. */
export function expireTimers({ pid, workers }: Pick<ServeProcess, 'pid' | 'workers'>): void {
  for (const worker of workers.length > 0 ? workers : [pid]) process.kill(worker, 'SIGCONT');
}
