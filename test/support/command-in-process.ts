import { Readable } from 'node:stream';
import { run, type Surroundings } from '../../src/commands/run.ts';
import type { Finished } from './command-line.ts';

export type CommandOptions = Partial<Omit<Surroundings, 'stdin'>> & { readonly input?: string };

/** Runs `gatehouse …` in this process, for tests of a command rather than of the process around it. */
export async function runCommand(
  args: readonly string[],
  { input = '', ...around }: CommandOptions = {},
): Promise<Finished> {
  let [stdout, stderr] = ['', ''];
  const code = await run(args, {
    stdout: (text) => void (stdout += text),
    stderr: (text) => void (stderr += text),
    stdin: Readable.from([Buffer.from(input)]),
    env: {},
    cwd: '/nowhere',
    execArgv: [],
    ...around,
  });
  return { code, stdout, stderr };
}
