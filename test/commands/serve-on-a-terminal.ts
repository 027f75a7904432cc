import { join } from 'node:path';
import { onTestFinished } from 'vitest';
import { quoteForShell } from '../../src/commands/quote.ts';
import { needs } from '../set-up/programs.ts';
import { type Child, startChild } from '../support/child-process.ts';
import { createServeFolder, isAlive } from '../support/serve-process.ts';

needs('script');

const MAIN = join(import.meta.dirname, '../../src/main.ts');
export const CTRL_C = '\u0003';
/** Longer than the test timeout: a test that waits for it fails. */
const NEVER = '10m';

/** Runs `gatehouse serve` in a pseudoterminal, and waits until it is ready. */
export async function startOnTerminal(
  env: Readonly<Record<string, string>> = {},
  settings: readonly string[] = [],
): Promise<Child> {
  const folder = await createServeFolder(({ log: _log, ...base }) => ({
    ...base,
    shutdown: { preStop: NEVER, drain: NEVER },
  }));
  onTestFinished(() => folder.remove());
  const command = [
    process.execPath,
    MAIN,
    'serve',
    '--config',
    folder.file('gatehouse.yaml'),
    ...settings.flatMap((setting) => ['--set', setting]),
  ];
  const terminal = await startChild(
    [
      'script',
      '--quiet',
      '--return',
      '--flush',
      '--command',
      // Without exec, the shell would be ended by Ctrl-C as well, and its exit code returned.
      `exec ${command.map(quoteForShell).join(' ')}`,
      '/dev/null',
    ],
    {
      cwd: folder.path,
      env: {
        PATH: process.env['PATH'],
        TERM: 'xterm',
        TMPDIR: process.env['TMPDIR'],
        NODE_COMPILE_CACHE: process.env['NODE_COMPILE_CACHE'],
        ...env,
      },
      ready: (line) => line.includes('ready'),
    },
  );
  const pid = Number(/\bpid"?[=:](\d+)/.exec(terminal.output())?.[1]);
  onTestFinished(async () => {
    // A closed terminal sends SIGHUP, which only reloads.
    if (isAlive(pid)) process.kill(pid, 'SIGKILL');
    await terminal.ended;
  });
  return terminal;
}

export const READY = /^\d\d:\d\d:\d\d info {2}ready url="https:\/\/\S+" port=\d+ admin_port=\d+ pid=(\d+)/m;
