import {
  type Document,
  isAlias,
  isMap,
  isNode,
  isScalar,
  isSeq,
  LineCounter,
  type Pair,
  parseDocument,
  visit,
  type YAMLMap,
} from 'yaml';
import { listAllNames } from './known-settings.ts';
import type { SettingPath, Tree } from './setting-path.ts';

/** Counted from 1. */
export interface Position {
  readonly line: number;
  readonly column: number;
}

type YamlResult =
  | {
      readonly ok: true;
      readonly value: Tree | undefined;
      /** Settings that are given twice: an error, but the rest can be checked. */
      readonly duplicates: readonly YamlProblem[];
      /** Returns the position of a setting, or of its closest ancestor in the file. */
      readonly findPosition: (path: SettingPath) => Position | undefined;
    }
  | { readonly ok: false; readonly problems: readonly YamlProblem[] };

/** YAML 1.2, core schema (`no` is text, not false). Duplicate keys are errors. */
export function parseYaml(text: string): YamlResult {
  const counter = new LineCounter();
  try {
    const document = parseDocument(text, {
      version: '1.2',
      uniqueKeys: true,
      prettyErrors: false,
      lineCounter: counter,
      logLevel: 'error',
    });
    const source = { text, document, counter };
    const issues = [...document.errors, ...document.warnings];
    if (issues.some(({ code }) => code !== 'DUPLICATE_KEY'))
      return { ok: false, problems: explainYamlIssues(source, issues) };
    const aliases = findUnresolvedAliases(source);
    if (aliases.length > 0) return { ok: false, problems: aliases };
    const positions = { document, counter, pairs: new Map() };
    return {
      ok: true,
      value: document.toJS({ maxAliasCount: MAX_ALIASES }) as Tree | undefined,
      duplicates: explainYamlIssues(source, issues),
      findPosition: (path) => findPosition(positions, path),
    };
  } catch (error) {
    return { ok: false, problems: [{ message: `not valid YAML: ${describeParseError(error)}` }] };
  }
}

function describeParseError(error: unknown): string {
  if (error instanceof RangeError) return 'it is nested too deeply';
  if (error instanceof ReferenceError) return `it has more than ${MAX_ALIASES} aliases`;
  return 'it cannot be read';
}

type PairsByName = ReadonlyMap<string, Pair>;

/** If a setting is given twice, the last value applies. */
const groupPairs = (map: YAMLMap): PairsByName =>
  new Map(map.items.flatMap((pair) => (isScalar(pair.key) ? [[String(pair.key.value), pair]] : [])));

/** The position of a scalar, or of the name of a group or list. */
function findPosition(
  { document, counter, pairs }: { document: Document; counter: LineCounter; pairs: Map<YAMLMap, PairsByName> },
  path: SettingPath,
): Position | undefined {
  let node: unknown = document.contents;
  let offset: number | undefined;
  for (const segment of path) {
    if (isAlias(node)) node = node.resolve(document);
    if (isMap(node)) {
      const byName = pairs.get(node) ?? groupPairs(node);
      pairs.set(node, byName);
      const pair = byName.get(String(segment));
      if (pair === undefined) break;
      node = pair.value;
      const located = isScalar(node) && node.value !== null ? node : pair.key;
      offset = (isNode(located) ? located.range?.[0] : undefined) ?? offset;
    } else if (isSeq(node) && typeof segment === 'number' && segment < node.items.length) {
      node = node.items[segment];
      offset = (isNode(node) ? node.range?.[0] : undefined) ?? offset;
    } else break;
  }
  if (offset === undefined) return undefined;
  const { line, col } = counter.linePos(offset);
  return { line, column: col };
}

/** A problem of the text itself. Messages never quote a value: it may be a secret. */
export interface YamlProblem {
  readonly message: string;
  readonly line?: number;
  readonly column?: number;
}

interface YamlSource {
  readonly text: string;
  readonly document: Document.Parsed;
  readonly counter: LineCounter;
}

interface YamlIssue {
  readonly code: string;
  readonly message: string;
  readonly pos: readonly [number, number];
}

/** An error of the parser, and where it is. */
interface Mistake extends YamlSource {
  readonly offset: number;
  readonly line: number;
  readonly lines: readonly string[];
}

const MAX_PROBLEMS = 20;

/** Enough for hand-written files; limits the expansion of nested aliases. */
export const MAX_ALIASES = 100;

/**
 * Explains the errors of the parser in words for someone who does not know YAML. One mistake often causes several errors, so
 * an error without a certain explanation is reported only if there is no other.
 */
export function explainYamlIssues(source: YamlSource, issues: readonly YamlIssue[]): YamlProblem[] {
  const lines = source.text.split('\n').map((line) => line.replace(/\r$/, ''));
  const mistakes = issues.slice(0, MAX_PROBLEMS).map((issue) => {
    const offset = Math.min(issue.pos[0], source.text.length);
    return { issue, mistake: { ...source, lines, offset, line: source.counter.linePos(offset).line } };
  });
  const certain = mistakes.flatMap(({ issue, mistake }) => explain(CERTAIN, issue, mistake) ?? []);
  const likely = mistakes
    .slice(0, 1)
    .map(({ issue, mistake }) => explain(LIKELY, issue, mistake) ?? quote(issue, mistake));
  const byLine = new Map((certain.length > 0 ? certain : likely).map((problem) => [problem.line, problem]));
  return [...byLine.values()];
}

/** Aliases without an anchor: most likely a value that begins with `*` and is not in quotes. */
export function findUnresolvedAliases(source: YamlSource): YamlProblem[] {
  const { document } = source;
  const problems: YamlProblem[] = [];
  let aliases = 0;
  visit(document, {
    Alias(_key, alias) {
      aliases += 1;
      // Resolving one searches the document; so many aliases are rejected anyway.
      if (aliases > MAX_ALIASES) return visit.BREAK;
      if (alias.resolve(document) !== undefined || !alias.range) return undefined;
      problems.push(at(source, alias.range[0], describeReserved('*')));
      return undefined;
    },
  });
  return problems.slice(0, MAX_PROBLEMS);
}

function at({ counter }: YamlSource, offset: number, message: string): YamlProblem {
  const { line, col } = counter.linePos(offset);
  return { message, line, column: col };
}

/** What follows a colon is quoted from the file. */
function quote({ message }: YamlIssue, mistake: Mistake): YamlProblem {
  const [first = ''] = message.split(/:|\n/);
  return at(mistake, mistake.offset, `not valid YAML: ${first.charAt(0).toLowerCase()}${first.slice(1)}`);
}

/** Which errors of the parser, as `CODE message`, and what they mean: a text is about the position of the error. */
type Explanation = readonly [error: RegExp, text: string | ((mistake: Mistake) => YamlProblem | undefined)];

function explain(explanations: readonly Explanation[], issue: YamlIssue, mistake: Mistake): YamlProblem | undefined {
  for (const [error, text] of explanations) {
    if (!error.test(`${issue.code} ${issue.message}`)) continue;
    const start = mistake.offset + mistake.text.slice(mistake.offset).search(/\S|$/);
    const problem = typeof text === 'string' ? at(mistake, start, text) : text(mistake);
    if (problem !== undefined) return problem;
  }
  return undefined;
}

/** A line in which a setting begins. */
const KEY = /^(\s*(?:-\s+)*)(["']?)([A-Za-z_][\w.-]*)\2\s*:(?=\s|$)/;

function nameLine(line = '', prefix = ''): string {
  const key = KEY.exec(line)?.[3];
  return key === undefined ? (prefix === '' ? 'this line' : 'this value') : `${prefix}\`${key}\``;
}

const nameValue = (line: string | undefined): string => nameLine(line, 'the value of ');

const isBlank = (line: string): boolean => /^\s*(?:#.*)?$/.test(line);

/** Looks at the line of the error and its neighbours: the parser often notices a mistake only in the next line. */
function findNearby({ lines, line }: Mistake, pattern: RegExp) {
  const before = lines.findLastIndex((text, index) => index < line - 1 && !isBlank(text));
  const after = lines.findIndex((text, index) => index >= line && !isBlank(text));
  for (const index of [line - 1, before, after]) {
    const [found, indent = '', name = ''] = pattern.exec(lines[index] ?? '') ?? [];
    if (found !== undefined) return { line: index + 1, indent, name, column: indent.length + name.length };
  }
  return undefined;
}

function explainTab(mistake: Mistake): YamlProblem | undefined {
  if (findNearby(mistake, /^ *\t\s*[^\s#]/) === undefined) return undefined;
  // All such lines are one problem, at the first of them.
  const index = mistake.lines.findIndex((text) => /^ *\t\s*[^\s#]/.test(text));
  const text = mistake.lines[index] ?? '';
  const message = `${nameLine(text.trimStart())} is indented with a tab; YAML allows only spaces there: replace every tab with spaces`;
  return { message, line: index + 1, column: text.indexOf('\t') + 1 };
}

function explainMissingSpace(mistake: Mistake): YamlProblem | undefined {
  const found = findNearby(mistake, /^(\s*(?:-\s+)*)([A-Za-z][\w-]*):[^\s:]/);
  if (found === undefined || !listAllNames().has(found.name)) return undefined;
  const { name, line, column } = found;
  const message = `there is no space after the colon of \`${name}\`; write \`${name}: \` and then the value`;
  return { message, line, column: column + 2 };
}

/** A quote that is not closed ends at the next one, in a later line, or at the end of the file. */
function explainOpenQuote(
  { counter, offset, line, lines, document }: Mistake,
  minLines: 0 | 1,
): YamlProblem | undefined {
  let problem: YamlProblem | undefined;
  visit(document, {
    Scalar(_key, { type, range }) {
      if ((type !== 'QUOTE_SINGLE' && type !== 'QUOTE_DOUBLE') || !range) return;
      const [first, last] = [counter.linePos(range[0]), counter.linePos(range[1])];
      if (range[0] > offset || last.line < line || last.line < first.line + minLines) return;
      const sign = type === 'QUOTE_SINGLE' ? "'" : '"';
      const name = nameValue(lines[first.line - 1]);
      const message = `${name} begins with a quote (${sign}) that is not closed; add ${sign} at its end`;
      problem = { message, line: first.line, column: first.col };
    },
  });
  return problem;
}

const describeReserved = (char: string): string =>
  `a value cannot begin with ${char} unless it is in quotes, because ${char} has a special meaning in YAML; write "${char}…"`;

function explainReserved(mistake: Mistake): YamlProblem | undefined {
  const char = mistake.text.charAt(mistake.offset);
  return /[*&!%@`|>,]/.test(char) ? at(mistake, mistake.offset, describeReserved(char)) : undefined;
}

function explainDuplicateKey(mistake: Mistake): YamlProblem {
  const { text, offset } = mistake;
  const [, name = 'this setting'] = /^["']?([\w.-]{1,64})/.exec(text.slice(offset)) ?? [];
  return at(mistake, offset, `\`${name}\` is set twice; remove one of the two, or merge them`);
}

function explainColonInValue({ lines, line }: Mistake): YamlProblem | undefined {
  const text = lines[line - 1] ?? '';
  const start = KEY.exec(text)?.[0].length ?? 0;
  const colon = text.slice(start).search(/:(?:\s|$)/);
  if (colon >= 0) {
    const message = `${nameValue(text)} contains a colon followed by a space; put the value in quotes`;
    return { message, line, column: start + colon + 1 };
  }
  // The next line is read as a continuation of the value.
  const index = lines.findIndex((other, at) => at >= line && !isBlank(other));
  const next = lines[index];
  if (next === undefined) return undefined;
  const message = `${nameLine(next)} is indented more than line ${line}, which has a value already; align the two lines`;
  return { message, line: index + 1, column: next.search(/\S/) + 1 };
}

const CERTAIN: readonly Explanation[] = [
  [/^DUPLICATE_KEY/, explainDuplicateKey],
  [/^MULTIPLE_DOCS/, '--- begins a second document, but a configuration is a single one; remove this line'],
  [/^/, explainTab],
  [/ Missing closing/, (mistake) => explainOpenQuote(mistake, 0)],
  [/^/, (mistake) => explainOpenQuote(mistake, 1)],
  [/^/, explainMissingSpace],
  [/^(?:BAD_SCALAR_START|BAD_ALIAS|TAG_RESOLVE_FAILED|BAD_DIRECTIVE)/, explainReserved],
  [/ Nested mappings are not allowed/, explainColonInValue],
];

/** These errors may also be the consequence of a mistake elsewhere. */
const LIKELY: readonly Explanation[] = [
  [/ must .*end with a \]/, 'a [ before this line is not closed; add ]'],
  [/ must .*end with a \}/, 'a { before this line is not closed; add }'],
  [/ Missing , /, 'a comma is missing: separate what is in [ ] or { } with commas'],
  [
    / Unexpected block-seq-ind on same line/,
    'a list begins in the line after its name; or write it in brackets: [a, b]',
  ],
  [
    / (?:A block sequence may not|Sequence item without|Unexpected seq-item-ind)/,
    'entries of a list and settings are mixed at one indentation; begin every entry with `- `, or indent what belongs to an entry',
  ],
  [
    / Implicit map keys need|^MULTILINE_IMPLICIT_KEY/,
    'this line is neither `name: value` nor an entry of a list, which begins with `- `',
  ],
  [/^BAD_INDENT/, 'this line is indented unlike the lines around it; align it with the lines of the same group'],
  [/ at node end/, 'there is more text after this value; put the whole value in one pair of quotes'],
];
