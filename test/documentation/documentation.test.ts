import { cpSync, existsSync, globSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { normalize, renderRecording, toLines } from '../../tools/recording.ts';
import { needs } from '../set-up/programs.ts';
import { runCommand } from '../support/command-in-process.ts';
import { type Demo, openTerminal, startDemo, temporaryFolder } from '../support/demo.ts';
import { createCa, issueServer } from '../support/pki.ts';
import { PAGES, programs, readBlocks, readPage, runProgram } from './pages.ts';
import { parseTranscript, toPattern } from './transcripts.ts';

needs('curl');

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

describe('transcripts in the documentation match the real output', () => {
  let demo: Demo;
  let folder: string;
  beforeAll(async () => {
    folder = temporaryFolder();
    demo = await startDemo(folder);
  });
  afterAll(async () => {
    await demo.stop();
    rmSync(folder, { recursive: true, force: true });
  });

  const transcribed = PAGES.filter((page) => readBlocks(page, 'console executed').length > 0);
  test('the documentation contains transcripts', () => {
    expect(transcribed).toEqual(expect.arrayContaining(['README.md', 'docs/start.md', 'docs/token-api.md']));
  });

  test.each(transcribed)('%s', async (page) => {
    const terminal = openTerminal('/bin/sh');
    try {
      const program = `'${join(ROOT, 'bin/gatehouse')}'`;
      await terminal.run(`cd '${folder}'; gatehouse() { ${program} "$@"; }`);
      if (page !== 'README.md') for (const command of demo.steps.get(0) ?? []) await terminal.run(command);
      for (const { command, output: expected } of readBlocks(page, 'console executed').flatMap(parseTranscript)) {
        const output = await terminal.run(
          command.replaceAll('https://localhost:8443', demo.url).replaceAll('http://127.0.0.1:9443', demo.adminUrl),
        );
        expect(output, command).toMatch(toPattern(expected));
      }
    } finally {
      terminal.close();
    }
  });

  test.each(programs())('the program in $page ($index) runs with the sources of the client library', ({ program }) =>
    runProgram(demo, program, async (modules) => symlinkSync(ROOT, join(modules, 'gatehouse')), [
      '--conditions=gatehouse-source',
    ]),
  );

  test.each(PAGES.flatMap((page) => readBlocks(page, 'yaml checked').map((yaml, index) => ({ page, index, yaml }))))(
    'the configuration in $page ($index) is valid',
    async ({ yaml }) => {
      const directory = mkdtempSync(join(tmpdir(), 'gatehouse-docs-'));
      try {
        cpSync(join(demo.folder, 'pki'), join(directory, 'pki'), { recursive: true });
        // The demo's certificate is for localhost, the documentation uses hosts under example.test.
        const { pem, keyPem } = await issueServer(await createCa(), {
          notAfter: new Date(Date.now() + 365 * 86_400_000),
        });
        writeFileSync(join(directory, 'pki/server.pem'), pem);
        writeFileSync(join(directory, 'pki/server-key.pem'), keyPem, { mode: 0o600 });
        writeFileSync(join(directory, 'gatehouse.yaml'), yaml);
        const checked = await runCommand(['check', '--config', join(directory, 'gatehouse.yaml')]);
        expect(checked).toMatchObject({ code: 0, stderr: '' });
      } finally {
        rmSync(directory, { recursive: true, force: true });
      }
    },
  );

  test('the walkthrough in the README starts like the printed one', () => {
    const [first = ''] = readBlocks('README.md', 'console executed');
    const shown = parseTranscript(first).map(({ command }) => command);
    const printed = [...(demo.steps.get(0) ?? []), ...(demo.steps.get(1) ?? [])];
    expect(shown.slice(1, 3)).toEqual(printed.slice(1, 3));
    expect(shown[3]?.split(/\s+/)).toEqual(printed[3]?.split(/\s+/));
  });

  test('the recording in the README begins like the output of the demo', () => {
    const readShown = (svg: string): string[] => {
      const lines = [...svg.matchAll(/<text class="\w+"[^>]*>([^<]*)</g)].map(([, line = '']) => line);
      return lines.slice(0, 1 + lines.findIndex((line) => line.includes('Events are logged below.')));
    };
    const recorded = readShown(readPage('docs/images/demo.svg'));
    expect(recorded.length).toBeGreaterThan(10);
    expect(recorded).toEqual(readShown(renderRecording(toLines(normalize(demo.printed(), demo)))));
  });
});

describe('the documentation is consistent', () => {
  test('the README contains its two commands verbatim', () => {
    const commands = readBlocks('README.md', 'sh').map((text) => text.trim());
    expect(commands).toEqual(['npm ci && npm start', 'npm ci && npm test']);
  });

  test('the README links to every page and is at most a screen and a half long', () => {
    const readme = readPage('README.md');
    const pages = PAGES.filter((page) => /^docs\/[^/]+\.md$/.test(page));
    expect(pages.length).toBeGreaterThan(15);
    expect(pages.filter((page) => !readme.includes(`](${page})`))).toEqual([]);
    expect(readme.split('\n').length).toBeLessThan(115);
  });

  test('every script of the package is described in CONTRIBUTING.md', () => {
    const { scripts } = JSON.parse(readPage('package.json')) as { scripts: Record<string, string> };
    const contributing = readPage('CONTRIBUTING.md');
    const known = new Set(['start', 'test', 'typecheck', 'lint', 'format', 'chart']);
    const undocumented = Object.keys(scripts).filter(
      (name) =>
        !known.has(name) &&
        !/^(?:pre|post)/.test(name) &&
        !contributing.includes(`npm run ${name}`) &&
        !contributing.includes(`\`${name}\``),
    );
    expect(undocumented).toEqual([]);
  });

  const everywhere = [...PAGES, ...globSync('{bench,deploy,helm,test,tools}/**/*.md', { cwd: ROOT })];
  const readProse = (page: string): string => readPage(page).replace(/^```[\s\S]*?^```/gm, '');
  /** Anchors as GitHub derives them from headings. */
  const listAnchors = (page: string): string[] =>
    [...readProse(page).matchAll(/^#+ (.+)$/gm)].map(([, heading = '']) =>
      heading
        .toLowerCase()
        .replace(/[^\p{L}\p{N}_ -]/gu, '')
        .replaceAll(' ', '-'),
    );

  test.each(everywhere)('%s: links have a target', (page) => {
    const broken = [...readProse(page).matchAll(/\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)/g)].filter(
      ([, file = '', anchor]) => {
        const to = file === '' ? page : relative(ROOT, resolve(ROOT, dirname(page), file));
        if (!existsSync(join(ROOT, to))) return true;
        return anchor !== undefined && to.endsWith('.md') && !listAnchors(to).includes(anchor);
      },
    );
    expect(broken.map(([link]) => link)).toEqual([]);
  });

  test.each(everywhere)('%s: the files and scripts it mentions exist', (page) => {
    const prose = readProse(page);
    const { scripts } = JSON.parse(readPage('package.json')) as { scripts: Record<string, string> };
    const named = [...prose.matchAll(/`((?:src|test|tools|bench|deploy|helm|docs|bin)\/[\w./*{},-]+)`/g)]
      .map(([, path = '']) => path)
      // Files of the example in CONTRIBUTING.md, and results of benchmarks and chaos runs.
      .filter((path) => !/\bsql\.|^(?:bench|test\/chaos)\/results\//.test(path));
    expect(named.filter((path) => globSync(path, { cwd: ROOT }).length === 0)).toEqual([]);
    const called = [...prose.matchAll(/`npm run ([\w:-]+)/g)].map(([, name = '']) => name);
    expect(called.filter((name) => scripts[name] === undefined)).toEqual([]);
  });
});
