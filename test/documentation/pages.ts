import { execFile } from 'node:child_process';
import { mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect } from 'vitest';
import type { Demo } from '../support/demo.ts';

const run = promisify(execFile);
const ROOT = fileURLToPath(new URL('../..', import.meta.url));
export const PAGES = [
  'README.md',
  'CONTRIBUTING.md',
  'SECURITY.md',
  'CHANGELOG.md',
  'CODE_OF_CONDUCT.md',
  ...readdirSync(join(ROOT, 'docs'), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.md'))
    .map((name) => join('docs', name)),
];
export const readPage = (page: string): string => readFileSync(join(ROOT, page), 'utf8');

export const readBlocks = (page: string, kind: string): string[] =>
  [...readPage(page).matchAll(/^```(.*)\n([\s\S]*?)^```$/gm)].flatMap(([, info, text = '']) =>
    info === kind ? [text] : [],
  );

/** The programs in the documentation that are executed unchanged. */
export const programs = (): { readonly page: string; readonly index: number; readonly program: string }[] =>
  PAGES.flatMap((page) => readBlocks(page, 'js executed').map((program, index) => ({ page, index, program })));

/** Runs a program in a project next to the demo; `install` fills its `node_modules`. */
export async function runProgram(
  demo: Demo,
  program: string,
  install: (modules: string) => Promise<void>,
  nodeArgs: readonly string[] = [],
): Promise<void> {
  const modules = join(demo.folder, 'node_modules');
  mkdirSync(modules, { recursive: true });
  try {
    await install(modules);
    const file = join(demo.folder, 'program.mjs');
    writeFileSync(file, program.replaceAll('https://localhost:8443', demo.url));
    const { stdout, stderr } = await run(process.execPath, [...nodeArgs, file], {
      cwd: demo.folder,
      timeout: 60_000,
    });
    expect(stderr).toBe('');
    expect(stdout).toMatch(/^200 \{/);
  } finally {
    rmSync(modules, { recursive: true, force: true });
  }
}
