import { Readable } from 'node:stream';
import { type ProcessContext, run } from '../../src/commands/run.ts';
import type { CommandResult } from './command-line.ts';

export type CommandOptions = Partial<Omit<ProcessContext, 'stdin'>> & { readonly input?: string };

/** Runs `gatehouse …` in this process, for tests that don't need a separate process. */
export async function runCommand(
  args: readonly string[],
  { input = '', ...overrides }: CommandOptions = {},
): Promise<CommandResult> {
  let [stdout, stderr] = ['', ''];
  const code = await run(args, {
    stdout: (text) => void (stdout += text),
    stderr: (text) => void (stderr += text),
    stdin: Readable.from([Buffer.from(input)]),
    env: {},
    cwd: '/nowhere',
    execArgv: [],
    ...overrides,
  });
  return { code, stdout, stderr };
}
