import { fileURLToPath } from 'node:url';
import { type ProcessResult as Ended, runChild } from './child-process.ts';

export type CommandResult = Omit<Ended, 'output'>;

export interface RunOptions {
  readonly env?: Readonly<Record<string, string>>;
  readonly cwd?: string;
  readonly input?: string;
  readonly nodeArgs?: readonly string[];
  /** The process is terminated after this time. */
  readonly timeoutMs?: number;
}

const ENTRY = fileURLToPath(new URL('../../src/main.ts', import.meta.url));

/** Node's compile cache (set-up/global-setup.ts); it does not change what a command does. */
const { NODE_COMPILE_CACHE = '' } = process.env;

/** Runs `gatehouse …` as a process with a minimal environment. */
export async function runGatehouse(args: readonly string[], options: RunOptions = {}): Promise<CommandResult> {
  const { env = {}, cwd, input = '', nodeArgs = [], timeoutMs = 30_000 } = options;
  const { code, stdout, stderr } = await runChild([process.execPath, ...nodeArgs, ENTRY, ...args], {
    env: { PATH: process.env['PATH'] ?? '', NODE_COMPILE_CACHE, ...env },
    cwd,
    input,
    seconds: timeoutMs / 1_000,
  });
  return { code, stdout, stderr };
}
