import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, renameSync, rmdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type Finished, finish, spawnChild } from '../support/child-process.ts';

/** The Python programs that tests use as independent clients, pinned, in a folder of their own beside the repository. */
const REQUIREMENTS = fileURLToPath(new URL('./requirements.txt', import.meta.url));
const LIMIT_MS = 240_000;

/** Makes the folder once for all test files and all runs; gives its `bin`. */
export async function pythonTools(): Promise<string> {
  const digest = createHash('sha256').update(readFileSync(REQUIREMENTS)).digest('hex').slice(0, 16);
  const folder = join(process.env['XDG_CACHE_HOME'] ?? tmpdir(), `gatehouse-test-python-${digest}`);
  const lock = `${folder}.lock`;
  const until = Date.now() + LIMIT_MS;
  while (!existsSync(folder)) {
    if (Date.now() > until) throw new Error(`${folder} is not made in time; is ${lock} left over?`);
    if (!take(lock)) {
      await new Promise((resolve) => setTimeout(resolve, 200));
      continue;
    }
    try {
      if (!existsSync(folder)) make(folder);
    } finally {
      rmdirSync(lock);
    }
  }
  return join(folder, 'bin');
}

function take(lock: string): boolean {
  try {
    mkdirSync(lock);
    return true;
  } catch {
    return false;
  }
}

function make(folder: string): void {
  const beside = `${folder}.making`;
  rmSync(beside, { recursive: true, force: true });
  run('python3', ['-m', 'venv', '--without-pip', beside]);
  // Installed where it will stand: a folder of this kind knows its own name.
  renameSync(beside, `${folder}.new`);
  const made = `${folder}.new`;
  const site = ['-m', 'pip', '--python', join(made, 'bin', 'python'), 'install', '--quiet', '--no-deps'];
  run('python3', [...site, '--only-binary=:all:', '--disable-pip-version-check', '-r', REQUIREMENTS]);
  renameSync(made, folder);
}

function run(command: string, words: readonly string[]): void {
  const { status, stderr, error } = spawnSync(command, words, { encoding: 'utf8', timeout: LIMIT_MS });
  if (status !== 0)
    throw new Error(
      `${command} ${words.join(' ')}: ${status} ${error?.message ?? ''} ${stderr.slice(-2_000)}`,
    );
}

export interface RunOptions {
  readonly env?: Readonly<Record<string, string>>;
  readonly onLine?: OnLine;
  /** Milliseconds after which it is ended. */
  readonly limit?: number;
}

/** Runs a program to its end; what it prints line by line goes to `onLine`, whose result it reads. */
export async function runPython(
  program: string,
  words: readonly string[],
  { env = {}, onLine, limit = LIMIT_MS }: RunOptions = {},
): Promise<Finished> {
  let failure: unknown;
  let answered = Promise.resolve();
  const child = spawnChild([program, ...words], {
    env: { ...process.env, ...env },
    onLine(line) {
      answered = answered
        .then(() => onLine?.(line))
        .then((answer) => void (answer !== undefined && child.write(`${answer}\n`)))
        .catch((error: unknown) => {
          failure ??= error;
          child.signal('SIGTERM');
        });
    },
  });
  const finished = await finish(child, limit / 1_000);
  if (failure !== undefined) throw failure;
  return finished;
}

export type OnLine = (
  line: string,
) => string | undefined | Promise<string | undefined> | Promise<void> | void;
