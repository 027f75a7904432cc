import type { Settings } from '../config/schema.ts';
import { largest } from '../lib/extremes.ts';
import type { LoggerOptions } from '../observability/logger.ts';
import type { CommandContext } from './command.ts';

type Environment = Readonly<Record<string, string | undefined>>;

/** As in Node: FORCE_COLOR overrides NO_COLOR (https://no-color.org), and 0 turns colours off. */
function usesEscapes({ NO_COLOR = '', FORCE_COLOR = '', TERM }: Environment): boolean {
  if (FORCE_COLOR !== '') return FORCE_COLOR !== '0' && FORCE_COLOR !== 'false';
  return NO_COLOR === '' && TERM !== 'dumb';
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
): Pick<LoggerOptions, 'format' | 'isColoured'> {
  const isText = format === 'text' || (format === 'auto' && isTerminal && !isService(env));
  return isText ? { format: 'text', isColoured: isTerminal && usesEscapes(env) } : { format: 'json' };
}
