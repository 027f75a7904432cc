import { symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { runChild } from '../support/child-process.ts';
import { createServeFolder, isAlive, startServe, until } from '../support/serve-process.ts';

test('gatehouse drain finds the process that runs serve, and signals neither workers nor other programs', async () => {
  const folder = await createServeFolder((settings) => ({
    ...settings,
    listen: { ...settings.listen, workers: 2 },
    log: { level: 'info' },
  }));
  onTestFinished(() => folder.remove());
  // A path of its own: other tests run the program, too.
  const entry = folder.file('gatehouse.ts');
  symlinkSync(join(import.meta.dirname, '../../src/main.ts'), entry);
  const drain = () => runChild([process.execPath, entry, 'drain', '0']);
  const none = await drain();
  expect([none.code, none.stderr]).toEqual([69, expect.stringContaining('no `gatehouse serve` process')]);

  // SIGPWR would end it.
  const other = await startServe(folder, { set: ['listen.workers=1'] });
  const server = await startServe(folder, { entry, set: ['store.path=other'] });
  expect(await drain()).toMatchObject({ code: 0, stderr: '' });
  await until(
    'both workers have announced it',
    () => server.log.filter(({ event }) => event === 'shutdown_announced').length === 2,
  );
  expect(other.log.some(({ event }) => event === 'shutdown_announced')).toBe(false);

  const second = await startServe(folder, { entry, set: ['store.path=third', 'listen.workers=1'] });
  const several = await drain();
  const pids = [server.pid, second.pid].toSorted((a, b) => a - b).join(', ');
  expect([several.code, several.stderr]).toEqual([69, expect.stringContaining(`(${pids}); pass --pid`)]);
  expect([server, second, other].map(({ pid }) => isAlive(pid))).toEqual([true, true, true]);
});

test('gatehouse drain waits and fails if the process cannot be signalled', async () => {
  const entry = join(import.meta.dirname, '../../src/main.ts');
  // Above the maximum of Linux (proc_sys_kernel(5), pid_max).
  const result = await runChild([process.execPath, entry, 'drain', '0', '--pid', '4194305']);
  expect([result.code, result.stderr]).toEqual([69, expect.stringContaining('4194305 cannot be signalled')]);
});
