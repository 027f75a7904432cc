import type { Settings } from '../config/schema.ts';
import type { LoggerOptions } from '../observability/logger.ts';
import type { CommandContext } from './command.ts';
import { getStyle } from './style.ts';

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
