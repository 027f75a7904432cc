import type { Settings } from '../config/schema.ts';
import { largest } from '../lib/extremes.ts';
import type { LoggerOptions } from '../observability/logger.ts';
import type { CommandContext } from './command.ts';

type TextStyle = (text: string) => string;

interface Style {
  /** Headings and names. */
  readonly emphasize: TextStyle;
  /** The word `warning`. */
  readonly warn: TextStyle;
  /** What is wrong. */
  readonly highlight: TextStyle;
}

const PLAIN: TextStyle = (text) => text;

const createTextStyle =
  (on: number, off: number): TextStyle =>
  (text) =>
    text === '' ? '' : `\x1b[${on}m${text}\x1b[${off}m`;

const BOLD = createTextStyle(1, 22);
const RED = createTextStyle(31, 39);
const YELLOW = createTextStyle(33, 39);

const PLAIN_STYLE: Style = { emphasize: PLAIN, warn: PLAIN, highlight: PLAIN };
const TERMINAL_STYLE: Style = { emphasize: BOLD, warn: YELLOW, highlight: RED };

type Environment = Readonly<Record<string, string | undefined>>;

/** For a stream that is a terminal or not. */
const getStyle = (isTerminal: boolean, env: Environment): Style =>
  usesEscapes(isTerminal, env) ? TERMINAL_STYLE : PLAIN_STYLE;

/** As in Node: FORCE_COLOR overrides NO_COLOR (https://no-color.org), and 0 turns colours off. */
function usesEscapes(isTerminal: boolean, { NO_COLOR = '', FORCE_COLOR = '', TERM }: Environment): boolean {
  if (FORCE_COLOR !== '') return FORCE_COLOR !== '0' && FORCE_COLOR !== 'false';
  return isTerminal && NO_COLOR === '' && TERM !== 'dumb';
}

const DEFAULT_COLUMNS = 80;
const MIN_COLUMNS = 40;

/** Text is wrapped on a terminal only, whose width may be unknown. */
export const getColumns = (isTerminal: boolean, columns: number | undefined): number =>
  isTerminal ? Math.max(MIN_COLUMNS, columns || DEFAULT_COLUMNS) : Number.POSITIVE_INFINITY;

/** For problems with a configuration, on standard error. */
export const getErrorColumns = ({ isErrorTerminal = false, errorColumns }: CommandContext): number =>
  getColumns(isErrorTerminal, errorColumns);

/** Prints a table; all rows have as many cells as the first, which usually is the header. */
export function printColumns({ stdout }: CommandContext, rows: readonly (readonly string[])[]): void {
  const widths = (rows[0] ?? []).map((_, column) => largest(rows.map((row) => row[column]?.length ?? 0)));
  for (const row of rows) {
    const cells = row.map((cell, column) => cell.padEnd(widths[column] ?? 0));
    stdout(`${cells.join('  ').trimEnd()}\n`);
  }
}

/** Does a person use this terminal? A container with `tty: true` has one too. */
export const isInteractive = ({
  isTerminal,
  stdin,
  env,
}: Pick<CommandContext, 'isTerminal' | 'stdin' | 'env'>): boolean =>
  isTerminal === true && stdin.isTTY === true && !isService(env);

const isService = (env: CommandContext['env']): boolean =>
  env['NOTIFY_SOCKET'] !== undefined || env['KUBERNETES_SERVICE_HOST'] !== undefined;

/** How the log is written to standard output. */
export function getLogFormat(
  { format }: Settings['log'],
  { isTerminal = false, env }: Pick<CommandContext, 'isTerminal' | 'env'>,
): Pick<LoggerOptions, 'format' | 'style'> {
  const isText = format === 'text' || (format === 'auto' && isTerminal && !isService(env));
  if (!isText) return { format: 'json' };
  return { format: 'text', ...(isTerminal && { style: getStyle(isTerminal, env) }) };
}
