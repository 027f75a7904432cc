import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { quoteForShell } from '../../src/commands/quote.ts';
import { needs } from '../set-up/programs.ts';
import { type Child, startChild } from '../support/child-process.ts';
import { createServeFolder } from '../support/serve-process.ts';
import { until } from '../support/until.ts';

needs('script');

const MAIN = join(import.meta.dirname, '../../src/main.ts');
const CTRL_C = '\u0003';
/** Longer than the test timeout: a test that waits for it fails. */
const NEVER = '10m';

/** Runs `gatehouse serve` in a pseudoterminal, and waits until it is ready. */
async function startOnTerminal(
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
    ['script', '--quiet', '--return', '--flush', '--command', command.map(quoteForShell).join(' '), '/dev/null'],
    {
      cwd: folder.path,
      env: { PATH: process.env['PATH'], TERM: 'xterm', TMPDIR: process.env['TMPDIR'], ...env },
      ready: (line) => line.includes('ready'),
    },
  );
  const pid = Number(/\bpid"?[=:](\d+)/.exec(terminal.output())?.[1]);
  onTestFinished(async () => {
    // A closed terminal sends SIGHUP, which only reloads.
    if (terminal.isRunning()) process.kill(pid, 'SIGKILL');
    await terminal.ended;
  });
  return terminal;
}

const READY = /^\d\d:\d\d:\d\d info  ready url="https:\/\/\S+" port=\d+ admin_port=\d+ pid=(\d+)\r?$/m;
const findPid = (terminal: Child): number => Number(READY.exec(terminal.output())?.[1]);

const waitUntilDraining = (terminal: Child, preStopSeconds: number): Promise<boolean> =>
  until('it is draining', () =>
    terminal.output().includes(`draining pre_stop_seconds=${preStopSeconds} drain_seconds=600`),
  );

test('the log is text, and Ctrl-C does not wait for shutdown.preStop', async () => {
  const terminal = await startOnTerminal({ NO_COLOR: '1' });
  expect(terminal.output()).toMatch(READY);
  terminal.write(CTRL_C);
  expect((await terminal.ended).code).toBe(0);
  expect(terminal.output()).toContain('draining pre_stop_seconds=0 drain_seconds=600');
  expect(terminal.output()).not.toContain('\u001b');
});

test('events are bold in the text, and log.format: json overrides it', async () => {
  const coloured = await startOnTerminal();
  expect(coloured.output()).toMatch(/^\d\d:\d\d:\d\d info {2}\u001b\[1mready\u001b\[22m url="/m);
  const json = await startOnTerminal({}, ['log.format=json']);
  expect(json.output()).toMatch(/^\{"time":"[^"]+","level":"info","event":"ready"/m);
});

test.each([
  ['SIGTERM', {}, (terminal: Child) => process.kill(findPid(terminal), 'SIGTERM')],
  ['Ctrl-C in a pod', { KUBERNETES_SERVICE_HOST: '10.0.0.1' }, (terminal: Child) => terminal.write(CTRL_C)],
])('%s waits for shutdown.preStop; Ctrl-C then ends it at once', async (_name, env, stop) => {
  const terminal = await startOnTerminal({ NO_COLOR: '1', ...env });
  stop(terminal);
  await waitUntilDraining(terminal, 600);
  // A signal that follows immediately is taken for the same one.
  await until('it has ended', () => {
    terminal.write(CTRL_C);
    return !terminal.isRunning();
  });
  expect((await terminal.ended).code).toBe(1);
});
