import { largest } from '../lib/extremes.ts';
import { wrapText } from '../lib/wrap-text.ts';

interface ProblemList {
  /** The name of the configuration. */
  readonly name: string;
  readonly problems: readonly ConfigProblem[];
  /** Sections and entries that could not be cross-checked. */
  readonly unchecked: readonly string[];
}

/** In `unchecked`, if the file cannot be parsed. */
export const WHOLE_FILE = 'everything else';

const MAX_PATH_WIDTH = 44;
/** A path that leaves less room than this for the message gets a line of its own. */
const MIN_MESSAGE_WIDTH = 48;

/** All problems as text: paths in one column, messages in the next. Lines are wrapped at this width. */
export function formatProblems(
  { name, problems, unchecked }: ProblemList,
  columns: number = Number.POSITIVE_INFINITY,
): string {
  const width = Math.min(
    MAX_PATH_WIDTH,
    largest(
      problems.map(({ path }) => path.length),
      0,
    ),
  );
  const count = problems.length === 1 ? '1 problem' : `${problems.length} problems`;
  return `${[
    `gatehouse: ${count} in ${name}`,
    ...problems.flatMap((problem) => formatEntry(problem, width, columns)),
    ...(unchecked.length === 0 ? [] : wrapText('  ', formatUnchecked(unchecked), columns)),
  ].join('\n')}\n`;
}

const formatUnchecked = (unchecked: readonly string[]): string =>
  unchecked.includes(WHOLE_FILE)
    ? 'The settings were not checked: correct this first, then run the command again.'
    : `There may be more problems, which can be found only when these are correct: ${unchecked.join(', ')}`;

function formatEntry(problem: ConfigProblem, width: number, columns: number): string[] {
  const { path } = problem;
  // The source stays together when lines are wrapped.
  const message = [...problem.message.split(' '), formatSource(problem).trim()].filter(Boolean);
  const prefix = `  ${path.padEnd(width)}${width > 0 ? '  ' : ''}`;
  const isNarrow = columns - prefix.length < MIN_MESSAGE_WIDTH;
  const lines =
    isNarrow && path !== '' ? [`  ${path}`, ...wrapText('    ', message, columns)] : wrapText(prefix, message, columns);
  return [...lines, ...formatExcerpt(problem)];
}

const MAX_EXCERPT_WIDTH = 68;

function formatExcerpt({ line, column, excerpt }: ConfigProblem): string[] {
  if (line === undefined || excerpt === undefined) return [];
  const at = Math.min(Math.max((column ?? 1) - 1, 0), excerpt.length);
  // A window of a long line, around the column.
  const start = excerpt.length <= MAX_EXCERPT_WIDTH ? 0 : Math.max(0, at - MAX_EXCERPT_WIDTH / 2);
  const number = String(line).padStart(7);
  return [
    `${number} | ${excerpt.slice(start, start + MAX_EXCERPT_WIDTH)}`,
    `${' '.repeat(number.length)} | ${' '.repeat(at - start)}^`,
  ];
}

/** In one line. A message from a worker process already ends with its source. */
export function formatProblem(problem: ConfigProblem): string {
  const source = formatSource(problem);
  const message = problem.message.endsWith(source) ? problem.message : `${problem.message}${source}`;
  return problem.path === '' ? message : `${problem.path}: ${message}`;
}

function formatSource({ line, from }: Pick<ConfigProblem, 'line' | 'from'>): string {
  const source = [from && `from ${from}`, line !== undefined && `line ${line}`].filter(Boolean).join(', ');
  return source === '' ? '' : ` (${source})`;
}

export interface ConfigProblem {
  /** Such as `integrations[0].scope`; empty for the whole configuration. */
  readonly path: string;
  readonly message: string;
  readonly line?: number;
  readonly column?: number;
  /** This line of the file, without secrets, where it helps to see it. */
  readonly excerpt?: string;
  /** The variable, flag or setting that the value comes from, if it is not in the file. */
  readonly from?: string;
}
