import type { ChildProcess } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type Child, spawnChild, startChild } from './child-process.ts';
import { until } from './until.ts';

export { until } from './until.ts';

/** `gatehouse demo` as a process. */
export interface Demo {
  readonly url: string;
  readonly adminUrl: string;
  readonly folder: string;
  readonly child: ChildProcess;
  /** Output so far. */
  readonly printed: () => string;
  /** The commands of the walkthrough by step number; the preparation is step 0. */
  readonly steps: ReadonlyMap<number, readonly string[]>;
  /** Stops it as Ctrl-C does (SIGINT); returns the exit code. */
  stop(): Promise<number | null>;
}

const MAIN = fileURLToPath(new URL('../../src/main.ts', import.meta.url));
export const temporaryFolder = (): string => mkdtempSync(join(tmpdir(), 'gatehouse demo-'));

interface DemoOptions {
  readonly args?: readonly string[];
  readonly env?: NodeJS.ProcessEnv;
}

const environment = (env: NodeJS.ProcessEnv): NodeJS.ProcessEnv => ({
  PATH: process.env['PATH'],
  NODE_COMPILE_CACHE: process.env['NODE_COMPILE_CACHE'],
  ...env,
});

export function spawnDemo(cwd: string, { args = [], env = {} }: DemoOptions = {}): Child {
  return spawnChild([process.execPath, MAIN, 'demo', ...args], { cwd, env: environment(env) });
}

export async function startDemo(
  cwd: string,
  { args = ['--set', 'listen.port=0', '--set', 'admin.port=0'], env = {} }: DemoOptions = {},
): Promise<Demo> {
  const child: Child = await startChild([process.execPath, MAIN, 'demo', ...args], {
    cwd,
    env: environment(env),
    ready: (line) => line.includes('Events are logged below.'),
  });
  const printed = child.output;
  return {
    url: /gatehouse is running: (\S+)/.exec(printed())?.[1] ?? '',
    adminUrl: /admin listener +(\S+)/.exec(printed())?.[1] ?? '',
    folder: join(cwd, '.gatehouse'),
    child: child.process,
    printed,
    steps: parseSteps(printed()),
    // npm forwards the signal that the process also gets from the terminal.
    stop: async () => {
      child.process.kill('SIGINT');
      return (await child.stop('SIGINT')).code;
    },
  };
}

function parseSteps(text: string): ReadonlyMap<number, readonly string[]> {
  const steps = new Map<number, string[]>();
  let number = 0;
  // A backslash at the end of a line continues the command.
  for (const command of text.split(/(?<!\\)\n/).filter((line) => line.startsWith('    '))) {
    const title = /^ {4}echo '# (\d+)\. /.exec(command);
    if (title) number = Number(title[1]);
    else steps.set(number, [...(steps.get(number) ?? []), command.slice(4)]);
  }
  return steps;
}

export interface Terminal {
  /** Runs one command as if it were typed; returns its output. `seconds` is the deadline. */
  run(command: string, seconds?: number): Promise<string>;
  close(): void;
}

/** One shell for all commands, so that variables and functions persist. */
export function openTerminal(shell: string, env: NodeJS.ProcessEnv = {}, cwd?: string): Terminal {
  const child = spawnChild([shell], { env: environment(env), cwd });
  child.write('exec 2>&1\n');
  let count = 0;
  let seen = 0;
  return {
    async run(command, seconds) {
      count += 1;
      const mark = `==end of ${count}==`;
      child.write(`${command}\necho '${mark}'\n`);
      const hasRun = (): boolean => child.stdout().includes(`${mark}\n`, seen);
      await until(`the shell has run ${command}`, hasRun, seconds);
      const end = child.stdout().indexOf(mark, seen);
      const output = child.stdout().slice(seen, end);
      seen = end + mark.length + 1;
      return output;
    },
    close: () => void child.process.stdin.end(),
  };
}

/** Creates a folder for PATH that contains only these programs. */
export function pathWithOnly(folder: string, programs: readonly string[]): string {
  const bin = join(folder, 'bin');
  mkdirSync(bin);
  for (const program of programs)
    for (const directory of (process.env['PATH'] ?? '').split(delimiter)) {
      try {
        readFileSync(join(directory, program));
        symlinkSync(join(directory, program), join(bin, program));
        break;
      } catch {
        // Not in this folder of the PATH.
      }
    }
  return bin;
}
