import { needs } from '../set-up/programs.ts';
import { startChild } from './child-process.ts';

needs('strace');

export interface StalledFlush {
  /** Continues the blocked flushes and all later ones. */
  resume(): Promise<void>;
}

/** Blocks every `fdatasync` of a running process; undefined if this user may not trace processes. */
export async function stallFlush(pid: number): Promise<StalledFlush | undefined> {
  const tracer = ['strace', '-f', '-p', String(pid), '-o', '/dev/null', '-e', 'trace=fdatasync'];
  const anHour = 3_600 * 1_000_000;
  const strace = await startChild([...tracer, '-e', `inject=fdatasync:delay_enter=${anHour}`], {
    ready: (line) => line.includes('attached'),
  }).catch(() => undefined);
  if (strace === undefined) return undefined;
  return { resume: async () => void (await strace.stop('SIGINT')) };
}
