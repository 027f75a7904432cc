import { spawnSync } from 'node:child_process';
import { chmodSync, copyFileSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { spawnChild } from '../support/child-process.ts';
import { MEMORY_ENVIRONMENT } from '../support/memory-environment.ts';
import { createServeFolder, startServe } from '../support/serve-process.ts';
import { tempFolder } from '../support/temp-folder.ts';

const LAUNCHER = join(import.meta.dirname, '../../bin/gatehouse');
const { NODE_OPTIONS: OPTION, ...VARIABLES } = MEMORY_ENVIRONMENT;

test('the program runs on the Node of the installation, whatever `node` the caller has, and through links', () => {
  const folder = tempFolder('launcher');
  onTestFinished(() => folder.remove());
  const oldNode = folder.file('node');
  writeFileSync(oldNode, '#!/bin/sh\necho "the node of the caller"\nexit 1\n');
  chmodSync(oldNode, 0o755);
  symlinkSync(LAUNCHER, folder.file('first'));
  symlinkSync('first', folder.file('second'));
  const env = { PATH: `${folder.path}:/usr/bin:/bin` };
  const run = (input: string, ...args: readonly string[]) => {
    const { status, stdout, stderr } = spawnSync(folder.file('second'), args, { encoding: 'utf8', env, input });
    return { status, stdout, stderr };
  };
  expect(run('', 'version')).toEqual({
    status: 0,
    stdout: expect.stringContaining(`Node ${process.versions.node}`),
    stderr: '',
  });
  expect(run('', 'chek')).toEqual({
    status: 64,
    stdout: '',
    stderr: 'gatehouse: unknown command "chek"; did you mean check?\n',
  });
  expect(run('secret', 'hash-password').stdout).toMatch(/^\$argon2id\$/);
});

test('a package without its program says which file is missing', () => {
  const folder = tempFolder('launcher');
  onTestFinished(() => folder.remove());
  mkdirSync(folder.file('bin'));
  copyFileSync(LAUNCHER, folder.file('bin/gatehouse'));
  const { status, stdout, stderr } = spawnSync(folder.file('bin/gatehouse'), ['version'], { encoding: 'utf8' });
  expect({ status, stdout }).toEqual({ status: 70, stdout: '' });
  expect(stderr).toContain(`gatehouse: ${folder.file('dist/main.js')} is missing.`);
});

test.each([
  [{}, VARIABLES],
  [{ MALLOC_ARENA_MAX: '3' }, { ...VARIABLES, MALLOC_ARENA_MAX: '3' }],
])('with %j, the memory settings are %j', async (env, expected) => {
  const child = spawnChild([LAUNCHER, 'sleep', '60'], { env: { PATH: '/usr/bin:/bin', ...env } });
  onTestFinished(() => child.signal('SIGKILL'));
  const read = (name: string): string[] => readFileSync(`/proc/${child.pid}/${name}`, 'utf8').split('\0');
  // The process is replaced, so its command line changes.
  await expect.poll(() => read('cmdline'), { timeout: 20_000 }).toContain(OPTION);
  const found = read('environ').filter((line) => line.startsWith('MALLOC_'));
  expect(found.toSorted()).toEqual(Object.entries(expected).map(([name, value]) => `${name}=${value}`));
});

test('workers have the memory settings of the process that starts them', async () => {
  const folder = await createServeFolder();
  onTestFinished(() => folder.remove());
  const { workers } = await startServe(folder, {
    set: ['listen.workers=2'],
    env: VARIABLES,
    nodeOptions: [OPTION],
  });
  expect(workers).toHaveLength(2);
  for (const pid of workers) {
    expect(readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0')).toContain(OPTION);
    expect(readFileSync(`/proc/${pid}/environ`, 'utf8')).toContain('MALLOC_MMAP_THRESHOLD_=65536');
  }
});
