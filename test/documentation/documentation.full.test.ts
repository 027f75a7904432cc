import { execFile } from 'node:child_process';
import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, onTestFinished, test } from 'vitest';
import { startDemo, temporaryFolder } from '../support/demo.ts';
import { installPacked } from './installed-package.ts';
import { programs, runProgram } from './pages.ts';

const run = promisify(execFile);

test.each(programs())(
  'the program in $page ($index) and its command run with the packed npm package',
  async ({ program }) => {
    const folder = temporaryFolder();
    onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
    const demo = await startDemo(folder);
    onTestFinished(async () => void (await demo.stop()));
    await runProgram(demo, program, async (modules) => {
      await installPacked(demo.folder);
      const command = join(modules, 'gatehouse/bin/gatehouse');
      const { stdout } = await run(command, ['version'], { cwd: demo.folder });
      expect(stdout).toMatch(/^gatehouse \d/);
    });
  },
  180_000,
);
