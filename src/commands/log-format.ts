import type { Settings } from '../config/schema.ts';
import type { LoggerOptions } from '../observability/logger.ts';
import type { CommandContext } from './command.ts';
import { getStyle } from './style.ts';

/** How the log is written to standard output. */
export function getLogFormat(
  { format }: Settings['log'],
  { isTerminal = false, env }: Pick<CommandContext, 'isTerminal' | 'env'>,
): Pick<LoggerOptions, 'format' | 'style'> {
  const isText = format === 'text' || (format === 'auto' && isTerminal);
  if (!isText) return { format: 'json' };
  return { format: 'text', ...(isTerminal && { style: getStyle(isTerminal, env) }) };
}
