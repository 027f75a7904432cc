import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, renameSync, rmdirSync, rmSync, statSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { getPythonFolder, needs } from '../set-up/programs.ts';
import { finish, type ProcessResult, spawnChild } from '../support/child-process.ts';

needs('python3', 'pip3');

/** Pinned Python packages that tests use as independent clients. */
const REQUIREMENTS = fileURLToPath(new URL('./requirements.txt', import.meta.url));
const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const LIMIT_MS = 240_000;

/** Installs them, or those of another file, once for all test files and runs of a checkout; returns their `bin` folder. */
export async function installPythonTools(requirements = REQUIREMENTS): Promise<string> {
  const folder = getPythonFolder(requirements);
  mkdirSync(dirname(folder), { recursive: true });
  const lock = `${folder}.lock`;
  const until = Date.now() + 2 * LIMIT_MS;
  while (!existsSync(folder)) {
    if (Date.now() > until) throw new Error(`${folder} was not installed in time; another process holds ${lock}`);
    if (!reserve(lock)) {
      await new Promise((resolve) => setTimeout(resolve, 200));
      continue;
    }
    try {
      if (!existsSync(folder)) {
        console.log(`Installing the Python packages of ${relative(ROOT, requirements)}, once`);
        createEnvironment(folder, requirements);
      }
    } finally {
      rmdirSync(lock);
    }
  }
  return join(folder, 'bin');
}

function reserve(lock: string): boolean {
  try {
    mkdirSync(lock);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  }
  // No installation takes this long, so the owner of the lock was interrupted.
  const age = Date.now() - (statSync(lock, { throwIfNoEntry: false })?.mtimeMs ?? Date.now());
  if (age > LIMIT_MS) rmSync(lock, { recursive: true, force: true });
  return false;
}

function createEnvironment(folder: string, requirements: string): void {
  const beside = `${folder}.making`;
  // Remains of an interrupted installation.
  for (const left of [beside, `${folder}.new`]) rmSync(left, { recursive: true, force: true });
  run('python3', ['-m', 'venv', '--without-pip', beside]);
  // Created at its final path, because a virtual environment contains its own path.
  renameSync(beside, `${folder}.new`);
  const newFolder = `${folder}.new`;
  const site = ['-m', 'pip', '--python', join(newFolder, 'bin', 'python'), 'install', '--quiet', '--no-deps'];
  run('python3', [...site, '--only-binary=:all:', '--disable-pip-version-check', '-r', requirements]);
  renameSync(newFolder, folder);
}

function run(command: string, args: readonly string[]): void {
  const { status, stderr, error } = spawnSync(command, args, { encoding: 'utf8', timeout: LIMIT_MS });
  if (status !== 0)
    throw new Error(`${command} ${args.join(' ')}: ${status} ${error?.message ?? ''} ${stderr.slice(-2_000)}`);
}

export interface RunOptions {
  readonly env?: Readonly<Record<string, string>>;
  readonly onLine?: OnLine;
  /** Terminated after this number of milliseconds. */
  readonly limit?: number;
}

/** Runs a program to completion. Passes each line of its output to `onLine` and writes the result to its input. */
export async function runPython(
  program: string,
  args: readonly string[],
  { env = {}, onLine, limit = LIMIT_MS }: RunOptions = {},
): Promise<ProcessResult> {
  let failure: unknown;
  let replied = Promise.resolve();
  const child = spawnChild([program, ...args], {
    env: { ...process.env, ...env },
    onLine(line) {
      replied = replied
        .then(() => onLine?.(line))
        .then((reply) => void (reply !== undefined && child.write(`${reply}\n`)))
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

export type OnLine = (line: string) => string | undefined | Promise<string | undefined> | Promise<void> | void;
