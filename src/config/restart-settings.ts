import { getKnownSettings, type KnownSetting, settingAt } from './known-settings.ts';
import type { Settings } from './schema.ts';
import { formatPath, isObject, parsePath, type SettingPath } from './setting-path.ts';

type Group = Readonly<Record<string, unknown>>;

/** Changed settings that need a restart, by `appliesAfter` in the schema. All others apply at a reload. */
export const findRestartChanges = (started: Settings, next: Settings): readonly string[] =>
  compareGroups(getKnownSettings(), started, next, []);

function compareGroups(known: KnownSetting, before: Group, next: Group, parent: SettingPath): string[] {
  return [...known.properties].flatMap(([name, setting]) => {
    const path = [...parent, name];
    const isGroup = setting.properties.size > 0;
    if (!isGroup && setting.appliesAfter === undefined) return [];
    const [from, to] = [before[name], next[name]];
    if (isGroup && isObject(from) && isObject(to)) return compareGroups(setting, from, to, path);
    const isChanged = JSON.stringify(from) !== JSON.stringify(to);
    return isChanged && setting.appliesAfter !== undefined ? [formatPath(path)] : [];
  });
}

/** Is this setting read by the supervisor, so that replacing the workers does not apply it? */
export const isSupervisorSetting = (setting: string): boolean =>
  settingAt(parsePath(setting) ?? [])?.appliesAfter === 'restart';
