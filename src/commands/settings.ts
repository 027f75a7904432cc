import { formatProblems, type InvalidConfig, type LoadedConfig, loadSettings } from '../config/load.ts';
import { type CommandContext, EXIT, ExitError, writeJson } from './command.ts';

/** Reads the configuration of a command line; `text` replaces the content of the file. */
export function readConfig(context: CommandContext, text?: string): LoadedConfig | InvalidConfig {
  const file = context.option('config');
  return loadSettings({
    ...(file !== undefined && { file }),
    ...(text !== undefined && { text }),
    env: context.env,
    overrides: context.options('set'),
    cwd: context.cwd,
  });
}

/** As `readConfig`; prints all problems of an invalid configuration and ends the command. */
export function loadCommandSettings(context: CommandContext): LoadedConfig {
  const result = readConfig(context);
  if (result.ok) return result;
  const { name, problems, unchecked } = result;
  if (context.json) writeJson(context, { ok: false, configuration: name, problems, unchecked });
  else context.stderr(formatProblems(result));
  throw new ExitError(EXIT.configuration);
}
