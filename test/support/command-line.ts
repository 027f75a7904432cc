import { fileURLToPath } from 'node:url';
import { type ProcessResult as Ended, runChild } from './child-process.ts';

export type CommandResult = Omit<Ended, 'output'>;

export interface RunOptions {
  readonly env?: Readonly<Record<string, string>>;
  readonly cwd?: string;
  readonly input?: string;
  /** Another runtime than the one of the tests. */
  readonly node?: string;
  readonly nodeArgs?: readonly string[];
  /** Ended after this time. */
  readonly timeoutMs?: number;
}

const ENTRY = fileURLToPath(new URL('../../bin/gatehouse.js', import.meta.url));

/** Where Node keeps what it made of the sources (set-up/global-setup.ts): nothing that a command could see. */
const { NODE_COMPILE_CACHE = '' } = process.env;

/** `gatehouse …` as a real process, with an environment of its own, ended after 30 s unless told otherwise. */
export async function runGatehouse(
  args: readonly string[],
  options: RunOptions = {},
): Promise<CommandResult> {
  const { env = {}, cwd, input = '', node = process.execPath, nodeArgs = [], timeoutMs = 30_000 } = options;
  const { code, stdout, stderr } = await runChild([node, ...nodeArgs, ENTRY, ...args], {
    env: { PATH: process.env['PATH'] ?? '', NODE_COMPILE_CACHE, ...env },
    cwd,
    input,
    seconds: timeoutMs / 1_000,
  });
  return { code, stdout, stderr };
}
