import type { ConsoleHandler } from '../context.ts';
import { type EffectiveSection, listEffectiveSettings } from '../effective-settings.ts';
import { selectProblems } from '../rejected-reload.ts';
import { configurationPage, type SettingFilter } from '../views/configuration.ts';

const MAX_TEXT = 256;

export const showConfiguration: ConsoleHandler = async ({ deps, identity, query }) => {
  const settings = deps.getSettings();
  const { rejectedReload } = await deps.getStatus();
  const filter: SettingFilter = {
    text: (query.get('q') ?? '').trim().slice(0, MAX_TEXT),
    onlyChanged: query.get('changed') === '1',
  };
  return configurationPage(selectSettings(listEffectiveSettings(settings), filter), filter, {
    rejectedReload: selectProblems(rejectedReload, identity),
    pendingRestart: deps.findPendingRestart(settings),
  });
};

/** The settings whose path or value contains the text, without letter case. */
function selectSettings(
  sections: readonly EffectiveSection[],
  { text, onlyChanged }: SettingFilter,
): readonly EffectiveSection[] {
  const wanted = text.toLowerCase();
  return sections
    .map((section) => ({
      ...section,
      settings: section.settings.filter(
        ({ path, value = '', isChanged }) =>
          (isChanged || !onlyChanged) && `${path} ${value}`.toLowerCase().includes(wanted),
      ),
    }))
    .filter(({ settings }) => settings.length > 0);
}
