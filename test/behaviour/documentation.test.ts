import { execFile } from 'node:child_process';
import {
  cpSync,
  existsSync,
  globSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { gatehouse } from '../support/command-line.ts';
import { type Demo, openDemo, openTerminal, temporaryFolder } from '../support/demo.ts';
import { installPacked } from './packed.ts';

const run = promisify(execFile);
const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const PAGES = [
  'README.md',
  'CONTRIBUTING.md',
  'SECURITY.md',
  'CHANGELOG.md',
  ...readdirSync(join(ROOT, 'docs'), { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.md'))
    .map((name) => join('docs', name)),
];
const textOf = (page: string): string => readFileSync(join(ROOT, page), 'utf8');

const blocksOf = (page: string, kind: string): string[] =>
  [...textOf(page).matchAll(/^```(.*)\n([\s\S]*?)^```$/gm)].flatMap(([, info, text = '']) =>
    info === kind ? [text] : [],
  );

interface Exchange {
  readonly command: string;
  readonly answer: string;
}

/** A transcript: commands after `$ `, continued after a backslash; everything else is what they printed. */
function exchangesOf(transcript: string): Exchange[] {
  const exchanges: { command: string; answer: string }[] = [];
  for (const line of transcript.split(/(?<!\\)\n/)) {
    if (line.startsWith('$ ')) exchanges.push({ command: line.slice(2), answer: '' });
    else {
      const last = exchanges.at(-1);
      if (last !== undefined && line !== '') last.answer += `${line}\n`;
    }
  }
  return exchanges;
}

/** `…` stands for anything within a line. */
const shapeOf = (answer: string): RegExp =>
  new RegExp(
    `^${answer
      .split('…')
      .map((text) => RegExp.escape(text))
      .join('.*')}$`,
  );

describe('transcripts in the documentation are what a reader would see', () => {
  let demo: Demo;
  let folder: string;
  beforeAll(async () => {
    folder = temporaryFolder();
    demo = await openDemo(folder);
  });
  afterAll(async () => {
    await demo.stop();
    rmSync(folder, { recursive: true, force: true });
  });

  const transcribed = PAGES.filter((page) => blocksOf(page, 'console executed').length > 0);
  test('there are some', () => {
    expect(transcribed).toEqual(expect.arrayContaining(['README.md', 'docs/start.md', 'docs/token-api.md']));
  });

  test.each(transcribed)('%s', async (page) => {
    const terminal = openTerminal('/bin/sh');
    try {
      const program = `'${process.execPath}' '${join(ROOT, 'bin/gatehouse.js')}'`;
      await terminal.run(`cd '${folder}'; gatehouse() { ${program} "$@"; }`);
      if (page !== 'README.md') for (const command of demo.steps.get(0) ?? []) await terminal.run(command);
      for (const { command, answer } of blocksOf(page, 'console executed').flatMap(exchangesOf)) {
        const said = await terminal.run(
          command
            .replaceAll('https://localhost:8443', demo.url)
            .replaceAll('http://127.0.0.1:9443', demo.adminUrl),
        );
        expect(said, command).toMatch(shapeOf(answer));
      }
    } finally {
      terminal.close();
    }
  });

  test.each(
    PAGES.flatMap((page) =>
      blocksOf(page, 'js executed').map((program, index) => ({ page, index, program })),
    ),
  )(
    'the program in $page ($index) runs, with the package that npm pack makes',
    async ({ program }) => {
      await installPacked(demo.folder);
      const file = join(demo.folder, 'program.mjs');
      writeFileSync(file, program.replaceAll('https://localhost:8443', demo.url));
      const here = { cwd: demo.folder, timeout: 30_000 };
      const { stdout, stderr } = await run(process.execPath, [file], here);
      expect(stderr).toBe('');
      expect(stdout).toMatch(/^200 \{/);
      const command = join(demo.folder, 'node_modules/gatehouse/bin/gatehouse.js');
      expect((await run(process.execPath, [command, 'version'], here)).stdout).toMatch(/^gatehouse \d/);
    },
    180_000,
  );

  test.each(
    PAGES.flatMap((page) => blocksOf(page, 'yaml checked').map((yaml, index) => ({ page, index, yaml }))),
  )('the configuration in $page ($index) is sound', async ({ yaml }) => {
    const place = mkdtempSync(join(tmpdir(), 'gatehouse-docs-'));
    try {
      cpSync(join(demo.folder, 'pki'), join(place, 'pki'), { recursive: true });
      writeFileSync(join(place, 'gatehouse.yaml'), yaml);
      const checked = await gatehouse(['check', '--config', join(place, 'gatehouse.yaml')]);
      expect(checked).toMatchObject({ code: 0, stderr: '' });
    } finally {
      rmSync(place, { recursive: true, force: true });
    }
  });

  test('the story in the README begins as the printed one does', () => {
    const [first = ''] = blocksOf('README.md', 'console executed');
    const shown = exchangesOf(first).map(({ command }) => command);
    const printed = [...(demo.steps.get(0) ?? []), ...(demo.steps.get(1) ?? [])];
    expect(shown.slice(1, 3)).toEqual(printed.slice(1, 3));
    expect(shown[3]?.split(/\s+/)).toEqual(printed[3]?.split(/\s+/));
  });
});

describe('the documentation holds together', () => {
  test('the README has the two commands, exactly so', () => {
    const commands = blocksOf('README.md', 'sh').map((text) => text.trim());
    expect(commands).toEqual(['npm ci && npm start', 'npm ci && npm test']);
  });

  test('the README leads to every page, and tells of itself in about a screen and a half', () => {
    const readme = textOf('README.md');
    const pages = PAGES.filter((page) => /^docs\/[^/]+\.md$/.test(page));
    expect(pages.length).toBeGreaterThan(15);
    expect(pages.filter((page) => !readme.includes(`](${page})`))).toEqual([]);
    expect(readme.split('\n').length).toBeLessThan(115);
  });

  test('every script of the package is told of in CONTRIBUTING.md', () => {
    const { scripts } = JSON.parse(textOf('package.json')) as { scripts: Record<string, string> };
    const told = textOf('CONTRIBUTING.md');
    const known = new Set(['start', 'test', 'typecheck', 'lint', 'format', 'chart']);
    const untold = Object.keys(scripts).filter(
      (name) => !known.has(name) && !told.includes(`npm run ${name}`) && !told.includes(`\`${name}\``),
    );
    expect(untold).toEqual([]);
  });

  const everywhere = [...PAGES, ...globSync('{bench,deploy,helm,tools}/**/*.md', { cwd: ROOT })];
  const proseOf = (page: string): string => textOf(page).replace(/^```[\s\S]*?^```/gm, '');
  /** As GitHub makes them out of headings. */
  const anchorsIn = (page: string): string[] =>
    [...proseOf(page).matchAll(/^#+ (.+)$/gm)].map(([, heading = '']) =>
      heading
        .toLowerCase()
        .replace(/[^\p{L}\p{N}_ -]/gu, '')
        .replaceAll(' ', '-'),
    );

  test.each(everywhere)('%s: links lead somewhere', (page) => {
    const broken = [...proseOf(page).matchAll(/\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)/g)].filter(
      ([, file = '', anchor]) => {
        const to = file === '' ? page : relative(ROOT, resolve(ROOT, dirname(page), file));
        if (!existsSync(join(ROOT, to))) return true;
        return anchor !== undefined && to.endsWith('.md') && !anchorsIn(to).includes(anchor);
      },
    );
    expect(broken.map(([link]) => link)).toEqual([]);
  });

  test.each(everywhere)('%s: files and scripts it names are there', (page) => {
    const prose = proseOf(page);
    const { scripts } = JSON.parse(textOf('package.json')) as { scripts: Record<string, string> };
    const named = [...prose.matchAll(/`((?:src|test|tools|bench|deploy|helm|docs|bin)\/[\w./*{},-]+)`/g)]
      .map(([, path = '']) => path)
      // Of the worked example in CONTRIBUTING.md, and what a benchmark leaves behind.
      .filter((path) => !/\bsql\.|^bench\/results\//.test(path));
    expect(named.filter((path) => globSync(path, { cwd: ROOT }).length === 0)).toEqual([]);
    const called = [...prose.matchAll(/`npm run ([\w:-]+)/g)].map(([, name = '']) => name);
    expect(called.filter((name) => scripts[name] === undefined)).toEqual([]);
  });
});
