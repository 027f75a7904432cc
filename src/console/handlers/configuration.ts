import type { ConsoleHandler } from '../context.ts';
import { listEffectiveSettings } from '../effective-settings.ts';
import { configurationPage } from '../views/configuration.ts';

export const showConfiguration: ConsoleHandler = async ({ deps }) => {
  const settings = deps.getSettings();
  const { rejectedReload } = await deps.getStatus();
  return configurationPage(listEffectiveSettings(settings), {
    rejectedReload,
    pendingRestart: deps.findPendingRestart(settings),
  });
};
