import type { Loaded } from '../config/load.ts';
import { type Context, EXIT, writeJson } from './command.ts';

/** The settings a command line asks for; or the exit code, after all problems were told. */
export async function settingsFor(context: Context): Promise<Loaded | number> {
  const { loadSettings, writeProblems } = await import('../config/load.ts');
  const file = context.option('config');
  const result = loadSettings({
    ...(file !== undefined && { file }),
    env: context.env,
    overrides: context.options('set'),
    cwd: context.cwd,
  });
  if (result.ok) return result;
  const { name, problems, unchecked } = result;
  if (context.json) writeJson(context, { ok: false, configuration: name, problems, unchecked });
  else context.stderr(writeProblems(result));
  return EXIT.configuration;
}
