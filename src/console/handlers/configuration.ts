import type { ConsoleHandler } from '../context.ts';
import { listEffectiveSettings } from '../effective-settings.ts';
import { selectProblems } from '../rejected-reload.ts';
import { configurationPage } from '../views/configuration.ts';

export const showConfiguration: ConsoleHandler = async ({ deps, identity }) => {
  const settings = deps.getSettings();
  const { rejectedReload } = await deps.getStatus();
  return configurationPage(listEffectiveSettings(settings), {
    rejectedReload: selectProblems(rejectedReload, identity),
    pendingRestart: deps.findPendingRestart(settings),
  });
};
