import { globSync, readFileSync } from 'node:fs';
import { basename } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';

/**
 * Test titles begin with ids such as `R13 S17`, also as a list (`T15, T20:`) or a range (`U01-U04`). Case tables contain
 * titles as well, so every string literal is read, except attribute values in markup (`d="M13 …"`).
 */
const ID = '[A-Z]\\d{1,2}';
const LEADING_IDS = new RegExp(`(?<!=)['"\`](${ID}(?:(?:, | |-)${ID})*)(?=[ :,'"\`])`, 'g');
/** An id inside a title, which needs two digits, because one digit is ambiguous (`B2`). */
const TITLE = /(?:\b(?:test|describe)|\]\)|skipIf\(.*\))\(\s*(['"`])(.+?)\1/g;
const INNER_ID = /(?<![\w%./-])[A-Z]\d\d(?![\w-])/g;
const DEFINITION = new RegExp(`^\\| (${ID}) \\|`, 'gm');

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const read = (file: string): string => readFileSync(`${ROOT}/${file}`, 'utf8');

const numbersBetween = (from: string, to: string): string[] => {
  const [first, last] = [Number(from.slice(1)), Number(to.slice(1))];
  return Array.from(
    { length: last - first + 1 },
    (_, at) => from.charAt(0) + String(first + at).padStart(from.length - 1, '0'),
  );
};

const idsIn = (source: string): Set<string> =>
  new Set([
    ...[...source.matchAll(LEADING_IDS)].flatMap(([, list = '']) =>
      list.split(/,? /).flatMap((item) => {
        const [from = item, to] = item.split('-');
        return to === undefined ? [from] : numbersBetween(from, to);
      }),
    ),
    ...[...source.matchAll(TITLE)].flatMap(([, , title = '']) => title.match(INNER_ID) ?? []),
  ]);

const definitionsIn = (markdown: string): string[] => [...markdown.matchAll(DEFINITION)].map(([, id = '']) => id);

interface Source {
  readonly file: string;
  readonly text: string;
}

/** Ids used without a definition, defined without a use, and defined twice. */
const problemsOf = (sources: readonly Source[], markdown: string): string[] => {
  const defined = definitionsIn(markdown);
  const used = sources.map(({ file, text }) => ({ file, ids: idsIn(text) }));
  return [
    ...used.flatMap(({ file, ids }) =>
      [...ids].filter((id) => !defined.includes(id)).map((id) => `${file}: ${id} is not defined in test/README.md`),
    ),
    ...defined
      .filter((id) => !used.some(({ ids }) => ids.has(id)))
      .map((id) => `test/README.md: ${id} is not used by any test`),
    ...defined
      .filter((id, at) => defined.indexOf(id) !== at)
      .map((id) => `test/README.md: ${id} is defined more than once`),
  ];
};

const sources = globSync('test/**/*.ts', { cwd: ROOT })
  .filter((file) => basename(file) !== basename(import.meta.filename))
  .map((file) => ({ file, text: read(file) }));

test('every id in a test title is defined in test/README.md, and every defined id is used', () => {
  expect(sources.length).toBeGreaterThan(200);
  expect(definitionsIn(read('test/README.md')).length).toBeGreaterThan(200);
  expect(problemsOf(sources, read('test/README.md'))).toEqual([]);
});

test('an undefined id, an unused definition and a duplicate definition are reported with their file', () => {
  const text = [
    "test('Q01 a title', run);",
    'test(`Q02, Q04: 50 times`, run);',
    "describe('Q06-Q07 a range', run);",
    "test.each([1])('at the end (Q09)', run);",
    "const CASES = { 'Q10 in a table': 1 };",
  ].join('\n');
  const markdown = '| Q02 | in | out |\n| Q03 | in | out |\n| Q04 | in | out |\n| Q04 | in | out |\n';
  expect(problemsOf([{ file: 'test/a.test.ts', text }], markdown)).toEqual([
    ...['Q01', 'Q06', 'Q07', 'Q10', 'Q09'].map((id) => `test/a.test.ts: ${id} is not defined in test/README.md`),
    'test/README.md: Q03 is not used by any test',
    'test/README.md: Q04 is defined more than once',
  ]);
});

test.each([
  "test('RFC 7009 §2.2: a title', run)",
  "test('the flood of CVE-2023-44487', run)",
  "test('S256 and P-256', run)",
  "'k01'",
  "'/caf%C3%A9'",
  '<path d="M13 34V23">',
])('%s is not an id', (text) => {
  expect([...idsIn(text)]).toEqual([]);
});
