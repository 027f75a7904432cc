import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { formatProblems } from '../../src/config/load.ts';
import { loadProblems, loadText, MINIMAL_CONFIG } from '../support/configuration.ts';

const lines = (...text: readonly string[]): string => `${text.join('\n')}\n`;

/** The line with the excerpt, and the character that the caret points to. */
function readExcerpt(report: string): readonly [line: string, marked: string] {
  const [, line = '', text = '', , indent = ''] = /^ +(\d+) \| (.*)\n( +) \| ( *)\^$/m.exec(report) ?? [];
  return [line, text.slice(indent.length)];
}

const MISTAKES: readonly (readonly [mistake: string, text: string, line: number, message: RegExp, marked: string])[] = [
  [
    'a tab as indentation',
    lines('listen:', '\tport: 8443', '\tbehindTls: true'),
    2,
    /^`port` is indented with a tab; YAML allows only spaces/,
    '→port: 8443',
  ],
  [
    'a tab after spaces',
    lines('listen:', '  port: 8443', '  \tbehindTls: true'),
    3,
    /^`behindTls` is indented with a tab; .*replace every tab with spaces$/,
    '→behindTls: true',
  ],
  [
    'no space after a colon, the first of a group',
    lines('listen:', '  port:8443', '  behindTls: true'),
    2,
    /^there is no space after the colon of `port`; write `port: ` and then the value$/,
    '8443',
  ],
  [
    'no space after a colon, later in a group',
    lines('listen:', '  behindTls: true', '  port:8443', 'log: {}'),
    3,
    /^there is no space after the colon of `port`/,
    '8443',
  ],
  [
    'a quote that is not closed',
    lines('publicUrl: "https://api.example.test', 'listen: { behindTls: true }'),
    1,
    /^the value of `publicUrl` begins with a quote \("\) that is not closed; add " at its end$/,
    '"https://api.example.test',
  ],
  [
    'a quote that the next quote closes',
    lines('pages:', "  title: 'Example", "  accent: '#112233'", 'listen: { behindTls: true }'),
    2,
    /^the value of `title` begins with a quote \('\) that is (?:closed only in line 3|not closed)/,
    "'Example",
  ],
  [
    'a key that is given twice',
    lines('listen:', '  behindTls: true', '  port: 1', '  behindTls: true'),
    4,
    /^`behindTls` is set twice; remove one of the two, or merge them$/,
    'behindTls: true',
  ],
  [
    'a value that begins with *',
    lines('listen: { behindTls: true }', 'hosts:', '  allowed:', '    - *.example.test'),
    4,
    /^a value cannot begin with \* unless it is in quotes, because \* has a special meaning in YAML; write "\*…"$/,
    '*.example.test',
  ],
  [
    'a single * in a list',
    lines('listen: { behindTls: true }', 'hosts: { allowed: [*] }'),
    2,
    /^a value cannot begin with \* unless it is in quotes, because \* has a special meaning in YAML; write "\*…"$/,
    '*] }',
  ],
  [
    'a value that begins with @',
    lines('listen: { behindTls: true }', 'publicUrl: @host'),
    2,
    /^a value cannot begin with @ unless it is in quotes, .*; write "@…"$/,
    '@host',
  ],
  [
    'a value that begins with %',
    lines('listen: { behindTls: true }', 'publicUrl: %host'),
    2,
    /^a value cannot begin with % unless it is in quotes/,
    '%host',
  ],
  [
    'a value that begins with !',
    lines('listen: { behindTls: true }', 'publicUrl: !host'),
    2,
    /! has a special meaning in YAML/,
    '!host',
  ],
  [
    'a colon in a value',
    lines('listen:', '  port: 1', '  host: a: b'),
    3,
    /^the value of `host` contains a colon followed by a space; put the value in quotes$/,
    ': b',
  ],
  [
    'an equals sign instead of a colon',
    lines('listen:', '  behindTls: true', '  port=8443'),
    3,
    /^this line is neither `name: value` nor an entry of a list, which begins with `- `$/,
    'port=8443',
  ],
  [
    'a bracket that is not closed',
    lines('listen: { behindTls: true }', 'trustedProxies: [10.0.0.0/8', 'log: {}'),
    3,
    /^a \[ before this line is not closed; add \]$/,
    'log: {}',
  ],
  [
    'a line that is not aligned with its group',
    lines('listen:', '  behindTls: true', '   port: 8443'),
    3,
    /^`port` is indented more than line 2, which has a value already; align the two lines$/,
    'port: 8443',
  ],
  [
    'a line that is indented less than its group',
    lines('listen:', '    behindTls: true', '  port: 8443'),
    3,
    /^this line is indented unlike the lines around it; align it with the lines of the same group$/,
    'port: 8443',
  ],
  [
    'a line that is indented by one space',
    lines('listen:', '    behindTls: true', ' port: 8443'),
    3,
    /^this line is indented unlike/,
    'port: 8443',
  ],
  [
    'a list in the line of its name',
    lines('listen: { behindTls: true }', 'trustedProxies: - 10.0.0.0/8'),
    2,
    /^a list begins in the line after its name; or write it in brackets: \[a, b\]$/,
    '- 10.0.0.0/8',
  ],
  [
    'a second document',
    lines('listen: { behindTls: true }', '---', 'log: {}'),
    2,
    /^--- begins a second document, but a configuration is a single one; remove this line$/,
    '---',
  ],
];

test.each(MISTAKES)('%s is explained, with its line and the remedy', (_mistake, text, line, message, marked) => {
  const result = loadText(text);
  expect(result.ok).toBe(false);
  if (result.ok) return;
  expect(result.problems).toHaveLength(1);
  expect(result.problems[0]).toMatchObject({ line, message: expect.stringMatching(message) });
  expect(readExcerpt(formatProblems(result))).toEqual([String(line), marked]);
});

test('each of several mistakes is reported', () => {
  expect(
    loadProblems(lines('listen:', '\tport: 1', 'log: {}', 'publicUrl: @a', 'pages: {}', 'log: {}')).map(
      ({ line }) => line,
    ),
  ).toEqual([2, 4, 6]);
});

test('a setting that is given twice does not hide other problems', () => {
  expect(
    loadProblems(lines('listen: { behindTls: true, port: x }', 'log: {}', 'log: { level: loud }')).map(
      ({ path, line }) => [path, line],
    ),
  ).toEqual([
    ['', 3],
    ['listen.port', 1],
    ['log.level', 3],
  ]);
});

test.each([
  ['a quote that is not closed', 'store: { type: redis }\nlog: {}\naudit:\n  webhook:\n    secret: "hunter2-secret'],
  ['a tab', 'audit:\n  webhook:\n\tsecret: hunter2-secret\n'],
  ['no space after the colon', 'audit:\n  webhook:\n    url: a\n    secret:hunter2-secret\n'],
  ['a reserved character', 'audit:\n  webhook:\n    secret: @hunter2-secret\n'],
  ['a tag', 'audit:\n  webhook:\n    secret: !hunter2-secret\n'],
  ['an alias', 'audit:\n  webhook:\n    secret: *hunter2-secret\n'],
  ['a flow map', 'audit: { webhook: { secret: @hunter2-secret } }\n'],
  ['a value in the next line', 'audit:\n  webhook:\n    secret:\n      @hunter2-secret\n'],
  ['an equals sign', 'audit:\n  webhook:\n    url: a\n    secret=hunter2-secret\n'],
  ['a password in a URL', 'store:\n  url:redis://:hunter2-secret@host\n  type: redis\n'],
  ['a block of text', 'audit:\n  webhook:\n    secret: |hunter2-secret\n'],
  ['text after a quote', 'audit:\n  webhook:\n    secret: "a" hunter2-secret\n'],
  ['a second colon', 'audit:\n  webhook:\n    secret: a: hunter2-secret\n'],
])('no secret is shown: %s', (_mistake, text) => {
  const result = loadText(text);
  expect(result.ok).toBe(false);
  if (!result.ok) expect(`${JSON.stringify(result)}${formatProblems(result)}`).not.toContain('hunter2');
});

describe('text that is not YAML is reported with its line', () => {
  test.each([
    ['a broken mapping', 'listen:\n  port: 1\n  host: a: b\n', 3, /put the value in quotes/],
    ['an unknown tag', 'listen:\n  port: !!js/function 1\n', 2, /! has a special meaning in YAML/],
    ['an unknown escape', 'listen:\n  host: "\\q"\n', 2, /not valid YAML: invalid escape/],
  ] as const)('%s', (_name, text, line, words) => {
    const [problem] = loadProblems(text);
    expect(problem?.line).toBe(line);
    expect(problem?.message).toMatch(words);
  });

  test('exponential alias expansion is rejected', () => {
    const levels = Array.from(
      { length: 12 },
      (_, level) =>
        `a${level}: &a${level} [${Array.from({ length: 10 }, () => (level === 0 ? 'x' : `*a${level - 1}`)).join(',')}]`,
    );
    // Expanded, these are 10^12 values: a parser that expands them never returns.
    expect(loadProblems(levels.join('\n'))[0]?.message).toMatch(/more than 100 aliases/);
  });

  test('nesting depth is limited, and recursive aliases are rejected', () => {
    expect(loadProblems(`listen: ${'['.repeat(20_000)}`)[0]?.message).toMatch(/not valid YAML/);
    expect(loadProblems('directories: &d { a: { label: x, users: [ { groups: *d } ] } }').length).toBeGreaterThan(0);
  });

  test('a missing file, a folder and a binary file are reported', () => {
    const place = loadText(MINIMAL_CONFIG).folder;
    expect(loadProblems('', { file: join(place, 'nowhere.yaml') })[0]?.message).toMatch(/does not exist/);
    expect(loadProblems('', { file: place })[0]?.message).toMatch(/is a folder/);
  });
});
