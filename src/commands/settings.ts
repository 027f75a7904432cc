import {
  formatProblem,
  formatProblems,
  type Inspection,
  type InvalidConfig,
  inspectSettings,
  type LoadedConfig,
  type LoadOptions,
  loadSettings,
} from '../config/load.ts';
import type { DescribeMessages } from '../server/gateway.ts';
import { type CommandContext, EXIT, ExitError, writeJson } from './command.ts';
import { getErrorColumns } from './style.ts';

/** Reads the configuration of a command line; `text` replaces the content of the file. */
export const readConfig = (context: CommandContext, text?: string): LoadedConfig | InvalidConfig =>
  loadSettings({ ...createLoadOptions(context), ...(text !== undefined && { text }) });

/** As `readConfig`, for reporting more problems with it. */
export const inspectConfig = (context: CommandContext): Inspection => inspectSettings(createLoadOptions(context));

/**
 * Adds setting and line to messages about files. The text is parsed again, since positions are seldom needed and take
 * memory.
 */
export const createDescriber =
  (context: CommandContext, { text }: LoadedConfig): DescribeMessages =>
  (messages) => {
    if (messages.length === 0) return [];
    const { locate } = inspectSettings({
      ...createLoadOptions(context),
      ...(text !== undefined && { text }),
    });
    return messages.map((message) => formatProblem(locate(message)));
  };

function createLoadOptions({ option, options, env, cwd }: CommandContext): LoadOptions {
  const file = option('config');
  return { ...(file !== undefined && { file }), env, overrides: options('set'), cwd };
}

/** As `readConfig`; prints all problems of an invalid configuration and ends the command. */
export function loadCommandSettings(context: CommandContext): LoadedConfig {
  const result = readConfig(context);
  if (result.ok) return result;
  const { name, problems, unchecked } = result;
  if (context.json) writeJson(context, { ok: false, configuration: name, problems, unchecked });
  else context.stderr(formatProblems(result, getErrorColumns(context)));
  throw new ExitError(EXIT.configuration);
}

export function reportStartFailure({ stderr }: CommandContext, problems: readonly string[]): number {
  const count = problems.length === 1 ? 'one problem' : `${problems.length} problems`;
  stderr(`gatehouse: cannot start, ${count}\n`);
  for (const problem of problems) stderr(`  ${problem}\n`);
  return EXIT.configuration;
}
