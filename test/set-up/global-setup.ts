import { execFileSync } from 'node:child_process';
import { chmodSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { installCommand, skippedFiles } from './programs.ts';

const ROOT = resolve(import.meta.dirname, '../..');
/** Not `GATEHOUSE_…`, which gatehouse would read as a setting. */
const RUN = 'TEST_RUN_FOLDER';

/**
 * Runs before and after all tests: creates a temporary folder for the run and, at its end, fails the run if a test left a
 * process, a temporary file or a file in the checkout behind.
 */
export default function setUp(): () => Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-test-'));
  // Some tests run programs as another user.
  chmodSync(folder, 0o755);
  process.env['TMPDIR'] = folder;
  process.env[RUN] = folder;
  // The tests start hundreds of processes from the same sources, and compiling takes half of each start.
  process.env['NODE_COMPILE_CACHE'] ??= join(ROOT, 'node_modules/.cache/compiled');
  const before = listUntracked();
  // Also after an interrupt.
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }));
  return async () => {
    const left = [
      ...(await findRemaining(folder)).map(({ pid, command, isStartedByRun }) => {
        if (isStartedByRun) endProcess(pid);
        return `process ${pid}: ${command}`;
      }),
      ...readdirSync(folder, { recursive: true }).map((name) => `temporary file ${join(folder, String(name))}`),
      ...listUntracked()
        .filter((line) => !before.includes(line))
        .map((line) => `file in the checkout: ${line.slice(3)}`),
    ];
    rmSync(folder, { recursive: true, force: true });
    const { files, programs } = skippedFiles();
    const skipped = files.filter((file) => !file.endsWith('.full.test.ts')).length;
    if (skipped > 0)
      console.log(
        `\n${skipped} test files of npm test cannot run here; install what they need: ${installCommand(programs)}`,
      );
    if (left.length > 0) throw new Error(`the tests left something behind:\n  ${left.join('\n  ')}`);
  };
}

/** Untracked and ignored files of the checkout; empty without git. */
function listUntracked(): readonly string[] {
  try {
    const list = execFileSync('git', ['-c', 'core.fsmonitor=false', 'status', '--porcelain', '--ignored'], {
      cwd: ROOT,
      encoding: 'utf8',
    });
    // Changed files may be the developer's work in progress.
    return list.split('\n').filter((line) => /^(?:\?\?|!!) (?!node_modules\/$)/.test(line));
  } catch {
    return [];
  }
}

interface Running {
  readonly pid: number;
  readonly command: string;
  /** Whether it inherited the run's environment; otherwise it may be a shell whose working directory is in the run's folder. */
  readonly isStartedByRun: boolean;
}

function endProcess(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL');
  } catch {
    // The process has exited meanwhile.
  }
}

const GRACE_MS = 10_000;

/** Processes of this run that do not exit by themselves. */
async function findRemaining(run: string): Promise<readonly Running[]> {
  for (const end = performance.now() + GRACE_MS; ; await pause(100)) {
    const running = listProcesses(run);
    if (running.length === 0 || performance.now() > end) return running;
  }
}

/** Processes that inherited the run's environment or work in its folder, without Vitest's own workers. */
function listProcesses(run: string): readonly Running[] {
  if (process.platform !== 'linux') return [];
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .flatMap((name) => {
      try {
        const [, parent] = /\) \S (\d+)/.exec(readFileSync(`/proc/${name}/stat`, 'latin1')) ?? [];
        if (Number(parent) === process.pid) return [];
        const command = readFileSync(`/proc/${name}/cmdline`, 'utf8').replaceAll('\0', ' ').trim();
        const isStartedByRun = readFileSync(`/proc/${name}/environ`, 'latin1').includes(`${RUN}=${run}\0`);
        const isInFolder = command.includes(run) || readlinkSync(`/proc/${name}/cwd`).startsWith(run);
        return isStartedByRun || isInFolder ? [{ pid: Number(name), command, isStartedByRun }] : [];
      } catch {
        // The process has exited or belongs to another user.
        return [];
      }
    });
}
