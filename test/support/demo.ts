import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { setTimeout as wait } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

/** `gatehouse demo` as a real process, and a terminal beside it. */
export interface Demo {
  readonly url: string;
  readonly adminUrl: string;
  readonly folder: string;
  readonly child: ChildProcess;
  /** Everything it has printed so far. */
  readonly printed: () => string;
  /** The commands of the story, those that belong together under one number; the preparations under 0. */
  readonly steps: ReadonlyMap<number, readonly string[]>;
  /** Ends it as Ctrl-C does; tells the exit code. */
  stop(): Promise<number | null>;
}

const MAIN = fileURLToPath(new URL('../../src/main.ts', import.meta.url));
const LIMIT_MS = 30_000;

export async function until<T>(what: string, look: () => T | undefined | Promise<T | undefined>): Promise<T> {
  const end = Date.now() + LIMIT_MS;
  for (;;) {
    const found = await look();
    if (found !== undefined) return found;
    if (Date.now() > end) throw new Error(`waited in vain: ${what}`);
    await wait(50);
  }
}

export const temporaryFolder = (): string => mkdtempSync(join(tmpdir(), 'gatehouse demo-'));

export function startDemo(
  cwd: string,
  { args = [], env = {} }: { readonly args?: readonly string[]; readonly env?: NodeJS.ProcessEnv } = {},
): { readonly child: ChildProcess; readonly printed: () => string } {
  const child = spawn(process.execPath, [MAIN, 'demo', ...args], {
    cwd,
    env: { PATH: process.env['PATH'], NODE_COMPILE_CACHE: process.env['NODE_COMPILE_CACHE'], ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let printed = '';
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (text: string) => {
      printed += text;
    });
  return { child, printed: () => printed };
}

export async function openDemo(
  cwd: string,
  {
    args = ['--set', 'listen.port=0', '--set', 'admin.port=0'],
    env = {},
  }: Parameters<typeof startDemo>[1] = {},
): Promise<Demo> {
  const { child, printed } = startDemo(cwd, { args, env });
  await until('the story', () => {
    if (child.exitCode !== null) throw new Error(`the demo ended with ${child.exitCode}: ${printed()}`);
    return printed().includes('What happens is told below.') || undefined;
  });
  return {
    url: /gatehouse runs: (\S+)/.exec(printed())?.[1] ?? '',
    adminUrl: /admin listener +(\S+)/.exec(printed())?.[1] ?? '',
    folder: join(cwd, '.gatehouse'),
    child,
    printed,
    steps: stepsOf(printed()),
    async stop() {
      if (child.exitCode !== null) return child.exitCode;
      const ended = once(child, 'exit', { signal: AbortSignal.timeout(LIMIT_MS) });
      child.kill('SIGINT');
      const [code] = (await ended) as [number | null];
      return code;
    },
  };
}

function stepsOf(text: string): ReadonlyMap<number, readonly string[]> {
  const steps = new Map<number, string[]>();
  let number = 0;
  // A command goes on after a backslash at the end of its line.
  for (const command of text.split(/(?<!\\)\n/).filter((line) => line.startsWith('    '))) {
    const title = /^ {4}echo '# (\d+)\. /.exec(command);
    if (title) number = Number(title[1]);
    else steps.set(number, [...(steps.get(number) ?? []), command.slice(4)]);
  }
  return steps;
}

export interface Terminal {
  /** Runs one command as if it were typed; tells what it printed. */
  run(command: string): Promise<string>;
  close(): void;
}

/** One shell that stays, so that variables and functions live from line to line. */
export function openTerminal(shell: string, env: NodeJS.ProcessEnv = {}): Terminal {
  const child = spawn(shell, [], {
    env: { PATH: process.env['PATH'], NODE_COMPILE_CACHE: process.env['NODE_COMPILE_CACHE'], ...env },
    stdio: 'pipe',
  });
  let printed = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    printed += text;
  });
  child.stdin.write('exec 2>&1\n');
  let count = 0;
  return {
    async run(command) {
      count += 1;
      const mark = `==end of ${count}==`;
      printed = '';
      child.stdin.write(`${command}\necho '${mark}'\n`);
      const said = await until(command, () => (printed.includes(`${mark}\n`) ? printed : undefined));
      return said.slice(0, said.indexOf(mark));
    },
    close: () => void child.stdin.end(),
  };
}

/** A PATH on which only these programs are found. */
export function pathWithOnly(folder: string, programs: readonly string[]): string {
  const bin = join(folder, 'bin');
  mkdirSync(bin);
  for (const program of programs)
    for (const at of (process.env['PATH'] ?? '').split(delimiter)) {
      try {
        readFileSync(join(at, program));
        symlinkSync(join(at, program), join(bin, program));
        break;
      } catch {
        // Not in this folder of the PATH.
      }
    }
  return bin;
}
