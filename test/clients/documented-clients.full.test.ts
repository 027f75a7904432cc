import { execFile } from 'node:child_process';
import { readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Demo, startDemo, temporaryFolder } from '../support/demo.ts';
import { installPythonTools } from './python.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const page = readFileSync(join(ROOT, 'docs/oauth-libraries.md'), 'utf8');
const programs = [...page.matchAll(/^## (\S+).*?^```(js|python) run\n([\s\S]*?)^```$/gms)].map(
  ([, library = '', language = '', program = '']) => ({ library, language, program }),
);
const run = promisify(execFile);

let demo: Demo;
let folder: string;
beforeAll(async () => {
  folder = temporaryFolder();
  demo = await startDemo(folder);
  symlinkSync(join(ROOT, 'node_modules'), join(demo.folder, 'node_modules'));
}, 120_000);
afterAll(async () => {
  await demo?.stop();
  rmSync(folder, { recursive: true, force: true });
});

test('three libraries are documented', () => {
  expect(programs.map(({ library }) => library)).toEqual(['openid-client', 'requests-oauthlib', 'Authlib']);
});

test.each(programs)(
  '$library: the program in the documentation obtains a token and calls the API',
  async ({ library, language, program }) => {
    const file = join(demo.folder, language === 'js' ? `${library}.mjs` : `${library}.py`);
    writeFileSync(file, program.replaceAll('https://localhost:8443', demo.url));
    const runtime = language === 'js' ? process.execPath : join(await installPythonTools(), 'python');
    const { stdout } = await run(runtime, [file], {
      cwd: demo.folder,
      timeout: 60_000,
      // Without the CA bundles of the environment, which some libraries prefer to the configured one.
      env: { PATH: process.env['PATH'] },
    });
    expect(stdout).toMatch(/^200 \{"file":"welcome.txt","caller":"local:\{/);
  },
  300_000,
);
