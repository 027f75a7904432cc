import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';

/** A program that runs until it is stopped. Its output is in a file, because a cluster logs too much for a pipe. */
export interface Daemon {
  /** Throws with the end of the log if the program has exited. */
  assertRunning(): void;
  readonly log: string;
  stop(): Promise<void>;
}

const STOP_MS = 15_000;

export function startDaemon(
  program: string,
  args: readonly string[],
  { folder, env = {} }: { readonly folder: string; readonly env?: Readonly<Record<string, string>> },
): Daemon {
  const name = basename(program);
  const log = join(folder, `${name}.log`);
  const file = openSync(log, 'a', 0o600);
  const child: ChildProcess = spawn(program, [...args], {
    stdio: ['ignore', file, file],
    cwd: folder,
    env: { PATH: process.env['PATH'] ?? '', HOME: folder, ...env },
  });
  closeSync(file);
  let isOver = false;
  child.once('exit', () => {
    isOver = true;
  });
  child.once('error', () => {
    isOver = true;
  });
  const ended = once(child, 'exit');
  // A failed start is reported by assertRunning.
  ended.catch(() => {});
  return {
    log,
    assertRunning: () => {
      if (isOver) throw new Error(`${name} exited:\n${readFileSync(log, 'utf8').slice(-4_000)}`);
    },
    stop: async () => {
      if (isOver) return;
      child.kill('SIGTERM');
      const late = setTimeout(() => child.kill('SIGKILL'), STOP_MS);
      await ended;
      clearTimeout(late);
    },
  };
}
