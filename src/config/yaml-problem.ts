import { type Document, isScalar, type LineCounter, type Scalar, visit } from 'yaml';
import { listAllNames } from './known-settings.ts';

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

const MAX_PROBLEMS = 20;

/** Enough for hand-written files; limits the expansion of nested aliases. */
export const MAX_ALIASES = 100;

/**
 * Explains the errors of the parser in words for someone who does not know YAML. One mistake often causes several errors, so
 * an error without a certain explanation is reported only if there is no other.
 */
export function explainYamlIssues(source: YamlSource, issues: readonly YamlIssue[]): YamlProblem[] {
  const context = { ...source, lines: source.text.split('\n').map((line) => line.replace(/\r$/, '')) };
  const explained = issues.slice(0, MAX_PROBLEMS).map((issue) => explainIssue(context, issue));
  const certain = explained.filter(({ isCertain }) => isCertain);
  const reported = certain.length > 0 ? certain : explained.slice(0, 1);
  const byLine = new Map(reported.map(({ problem }) => [problem.line, problem]));
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
      problems.push({ message: describeReserved('*'), ...getPosition(source, alias.range[0]) });
      return undefined;
    },
  });
  return problems.slice(0, MAX_PROBLEMS);
}

interface Context extends YamlSource {
  readonly lines: readonly string[];
}

interface Explanation {
  readonly problem: YamlProblem;
  readonly isCertain: boolean;
}

type Explainer = (context: Context, issue: LocatedIssue) => YamlProblem | undefined;

interface LocatedIssue extends Omit<YamlIssue, 'pos'> {
  readonly offset: number;
  readonly line: number;
  readonly column: number;
}

function explainIssue(context: Context, { code, message, pos }: YamlIssue): Explanation {
  const offset = Math.min(pos[0], context.text.length);
  const issue = { code, message, offset, ...getPosition(context, offset) };
  for (const [isCertain, explainers] of [
    [true, CERTAIN],
    [false, LIKELY],
  ] as const)
    for (const explain of explainers) {
      const problem = explain(context, issue);
      if (problem !== undefined) return { problem, isCertain };
    }
  // What follows a colon is quoted from the file.
  const [first = ''] = message.split(/:|\n/);
  return {
    problem: {
      message: `not valid YAML: ${first.charAt(0).toLowerCase()}${first.slice(1)}`,
      line: issue.line,
      column: issue.column,
    },
    isCertain: false,
  };
}

function getPosition({ counter }: YamlSource, offset: number): { line: number; column: number } {
  const { line, col } = counter.linePos(offset);
  return { line, column: col };
}

/** A line in which a setting begins. */
const KEY = /^(\s*(?:-\s+)*)(["']?)([A-Za-z_][\w.-]*)\2\s*:(?=\s|$)/;

const nameLine = (line: string | undefined): string => {
  const key = KEY.exec(line ?? '')?.[3];
  return key === undefined ? 'this line' : `\`${key}\``;
};

const nameValue = (line: string | undefined): string => {
  const key = KEY.exec(line ?? '')?.[3];
  return key === undefined ? 'this value' : `the value of \`${key}\``;
};

const isBlank = (line: string): boolean => /^\s*(?:#.*)?$/.test(line);

/** The line of the error, and its neighbours: the parser often notices a mistake only in the next line. */
function* listNearbyLines({ lines }: Context, line: number): Generator<number> {
  if (line <= lines.length) yield line;
  for (const step of [-1, 1]) {
    let near = line + step;
    while (near >= 1 && near <= lines.length && isBlank(lines[near - 1] ?? '')) near += step;
    if (near >= 1 && near <= lines.length) yield near;
  }
}

const explainTab: Explainer = (context, { line }) => {
  const hasTab = (text: string): boolean => /^ *\t/.test(text) && !isBlank(text);
  if (![...listNearbyLines(context, line)].some((near) => hasTab(context.lines[near - 1] ?? ''))) return undefined;
  // All such lines are one problem, at the first of them.
  const found = context.lines.findIndex(hasTab) + 1;
  const text = context.lines[found - 1] ?? '';
  const others = context.lines.filter(hasTab).length - 1;
  const more = others === 0 ? '' : ` (as ${others === 1 ? '1 more line is' : `${others} more lines are`})`;
  return {
    message: `${nameLine(text.trimStart())} is indented with a tab${more}; YAML allows only spaces there: replace the tab with spaces`,
    line: found,
    column: text.indexOf('\t') + 1,
  };
};

const MISSING_SPACE = /^(\s*(?:-\s+)*)([A-Za-z][\w-]*):[^\s:]/;

const explainMissingSpace: Explainer = (context, { line }) => {
  for (const near of listNearbyLines(context, line)) {
    const [, indent = '', name = ''] = MISSING_SPACE.exec(context.lines[near - 1] ?? '') ?? [];
    if (listAllNames().has(name))
      return {
        message: `there is no space after the colon of \`${name}\`; write \`${name}: \` and then the value`,
        line: near,
        column: indent.length + name.length + 2,
      };
  }
  return undefined;
};

/** Quoted text around an offset; the last one, if there are several. */
function findQuoted({ document }: Context, isWanted: (start: number, end: number) => boolean): Scalar | undefined {
  let found: Scalar | undefined;
  visit(document, {
    Scalar(_key, scalar) {
      if (scalar.type !== 'QUOTE_DOUBLE' && scalar.type !== 'QUOTE_SINGLE') return;
      if (scalar.range && isWanted(scalar.range[0], scalar.range[1])) found = scalar;
    },
  });
  return found;
}

const getQuote = ({ type }: Scalar): string => (type === 'QUOTE_SINGLE' ? "'" : '"');

const explainOpenQuote: Explainer = (context, { message, offset }) => {
  if (!message.startsWith('Missing closing')) return undefined;
  const scalar = findQuoted(context, (start, end) => start <= offset && offset <= end + 1);
  const position = scalar?.range ? getPosition(context, scalar.range[0]) : getPosition(context, offset);
  const quote = scalar ? getQuote(scalar) : message.includes("'") ? "'" : '"';
  return {
    message: `${nameValue(context.lines[position.line - 1])} begins with a quote (${quote}) that is not closed; add ${quote} at its end`,
    ...position,
  };
};

/** A quote that is not closed ends at the next one, in a later line. */
const explainQuoteAcrossLines: Explainer = (context, { line }) => {
  const scalar = findQuoted(context, (start, end) => {
    const [first, last] = [getPosition(context, start).line, getPosition(context, end).line];
    return first < last && last === line;
  });
  if (!scalar?.range) return undefined;
  const position = getPosition(context, scalar.range[0]);
  return {
    message: `${nameValue(context.lines[position.line - 1])} begins with a quote (${getQuote(scalar)}) that is closed only in line ${line}; close it in its own line`,
    ...position,
  };
};

const RESERVED_MEANINGS: Readonly<Record<string, string>> = {
  '*': 'begins an alias',
  '&': 'begins an anchor',
  '!': 'begins a tag',
  '%': 'is reserved',
  '@': 'is reserved',
  '`': 'is reserved',
  '|': 'begins a block of text',
  '>': 'begins a block of text',
  ',': 'separates entries',
};

const describeReserved = (char: string): string =>
  `a value cannot begin with ${char} unless it is in quotes (in YAML, ${char} ${RESERVED_MEANINGS[char] ?? 'is reserved'}); write "${char}…"`;

const RESERVED_CODES: ReadonlySet<string> = new Set([
  'BAD_SCALAR_START',
  'BAD_ALIAS',
  'TAG_RESOLVE_FAILED',
  'BAD_DIRECTIVE',
]);

const explainReserved: Explainer = ({ text }, { code, offset, line, column }) => {
  const char = text[offset] ?? '';
  return RESERVED_CODES.has(code) && Object.hasOwn(RESERVED_MEANINGS, char)
    ? { message: describeReserved(char), line, column }
    : undefined;
};

const explainDuplicateKey: Explainer = (context, { code, offset, line, column }) => {
  if (code !== 'DUPLICATE_KEY') return undefined;
  let problem: YamlProblem | undefined;
  visit(context.document, {
    Map(_key, map) {
      const isAtOffset = (key: unknown): boolean => isScalar(key) && key.range?.[0] === offset;
      const duplicate = map.items.find(({ key }) => isAtOffset(key))?.key;
      if (!isScalar(duplicate)) return undefined;
      const first = map.items.find(({ key }) => isScalar(key) && key.value === duplicate.value)?.key;
      const firstLine = isScalar(first) && first.range ? getPosition(context, first.range[0]).line : line;
      problem = {
        message: `\`${String(duplicate.value).slice(0, 64)}\` is already set in line ${firstLine}; remove one of the two, or merge them`,
        line,
        column,
      };
      return visit.BREAK;
    },
  });
  return problem ?? { message: 'this setting is given twice; remove one of the two', line, column };
};

const explainColonInValue: Explainer = ({ lines }, { message, line }) => {
  if (!message.startsWith('Nested mappings are not allowed')) return undefined;
  const text = lines[line - 1] ?? '';
  const start = KEY.exec(text)?.[0].length ?? 0;
  const colon = text.slice(start).search(/:(?:\s|$)/);
  if (colon >= 0)
    return {
      message: `${nameValue(text)} contains a colon followed by a space; put the value in quotes`,
      line,
      column: start + colon + 1,
    };
  // The next line is read as a continuation of the value.
  const next = lines.findIndex((other, index) => index >= line && !isBlank(other));
  return next < 0
    ? undefined
    : {
        message: `${nameLine(lines[next])} is indented more than line ${line}, which has a value already; align the two lines`,
        line: next + 1,
        column: (lines[next] ?? '').search(/\S/) + 1,
      };
};

const explainSecondDocument: Explainer = ({ lines }, { code, line }) => {
  if (code !== 'MULTIPLE_DOCS') return undefined;
  const separator = lines.findIndex((text, index) => index > 0 && /^---(?:\s|$)/.test(text)) + 1;
  return {
    message: '--- begins a second document, but a configuration is a single one; remove this line',
    line: separator || line,
    column: 1,
  };
};

const CERTAIN: readonly Explainer[] = [
  explainDuplicateKey,
  explainSecondDocument,
  explainTab,
  explainOpenQuote,
  explainQuoteAcrossLines,
  explainMissingSpace,
  explainReserved,
  explainColonInValue,
];

const explainOpenBracket: Explainer = (context, { message, offset }) => {
  const closing = / must .*end with a ([\]}])/.exec(message)?.[1];
  if (closing === undefined) return undefined;
  const opening = closing === ']' ? '[' : '{';
  const start = findOpenBracket(context.text.slice(0, offset), opening, closing);
  return start === undefined
    ? undefined
    : { message: `the ${opening} here is not closed; add ${closing}`, ...getPosition(context, start) };
};

function findOpenBracket(text: string, opening: string, closing: string): number | undefined {
  let depth = 0;
  for (let at = text.length - 1; at >= 0; at -= 1) {
    if (text[at] === closing) depth += 1;
    else if (text[at] === opening) {
      if (depth === 0) return at;
      depth -= 1;
    }
  }
  return undefined;
}

const explainMissingComma: Explainer = (_context, { message, line, column }) =>
  message.startsWith('Missing , ')
    ? { message: 'a comma is missing: separate what is in [ ] or { } with commas', line, column }
    : undefined;

const explainMissingColon: Explainer = ({ lines }, { code, message, line, column }) => {
  if (!message.startsWith('Implicit map keys need') && code !== 'MULTILINE_IMPLICIT_KEY') return undefined;
  const text = lines[line - 1] ?? '';
  const [, indent = '', name = ''] = /^(\s*(?:-\s+)*)([A-Za-z][\w.-]*)\s*=/.exec(text) ?? [];
  if (name !== '')
    return {
      message: `write \`${name}: \` with a colon and a space, not \`${name}=\``,
      line,
      column: indent.length + name.length + 1,
    };
  const [, word = ''] = /^\s*(?:-\s+)*([A-Za-z][\w.-]*)\s*(?:#.*)?$/.exec(text) ?? [];
  return listAllNames().has(word)
    ? { message: `there is no colon after \`${word}\`; write \`${word}:\``, line, column }
    : {
        message: 'this line is neither `name: value` nor an entry of a list, which begins with `- `',
        line,
        column,
      };
};

const explainIndentation: Explainer = (context, { code, offset }) => {
  if (code !== 'BAD_INDENT') return undefined;
  const rest = context.text.slice(offset);
  const { line, column } = getPosition(context, offset + (/^\s*/.exec(rest)?.[0].length ?? 0));
  return {
    message: `${nameLine(context.lines[line - 1])} is indented by ${column === 2 ? '1 space' : `${column - 1} spaces`}, unlike the lines around it; align it with the lines of the same group`,
    line,
    column,
  };
};

const explainEntryBesideName: Explainer = (_context, { message, line, column }) =>
  message.startsWith('Unexpected block-seq-ind on same line')
    ? {
        message: 'a list begins in the line after its name; or write it in brackets: [a, b]',
        line,
        column,
      }
    : undefined;

const explainMixedList: Explainer = (context, { message, offset }) => {
  if (!/^(?:A block sequence may not|Sequence item without|Unexpected seq-item-ind)/.test(message)) return undefined;
  const rest = context.text.slice(offset);
  return {
    message:
      'entries of a list and settings are mixed at one indentation; begin every entry with `- `, or indent what belongs to an entry',
    ...getPosition(context, offset + (/^\s*/.exec(rest)?.[0].length ?? 0)),
  };
};

const explainTextAfterValue: Explainer = ({ lines }, { message, line, column }) =>
  / at node end/.test(message)
    ? {
        message: `there is more text after ${nameValue(lines[line - 1])}; put the whole value in one pair of quotes`,
        line,
        column,
      }
    : undefined;

/** These errors may also be the consequence of a mistake elsewhere. */
const LIKELY: readonly Explainer[] = [
  explainOpenBracket,
  explainMissingComma,
  explainEntryBesideName,
  explainMixedList,
  explainMissingColon,
  explainIndentation,
  explainTextAfterValue,
];
