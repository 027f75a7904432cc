import { expect, test } from 'vitest';
import { settingAt } from '../../src/config/known-settings.ts';
import { loadSettings } from '../../src/config/load.ts';
import { findRestartChanges } from '../../src/config/restart-settings.ts';
import type { Settings } from '../../src/config/schema.ts';
import { formatPath, getAt, type SettingPath, type Tree, type TreeObject } from '../../src/config/setting-path.ts';
import { createBase, LEAVES, listPlaces } from './every-setting.ts';

/** Not `structuredClone`: settings contain functions. */
function withChange(tree: Tree | undefined, [name, ...rest]: SettingPath): Tree {
  if (name === undefined) return `${JSON.stringify(tree)} changed`;
  const inner = withChange(getAt(tree, [name]), rest);
  return Array.isArray(tree) ? tree.with(Number(name), inner) : { ...(tree as TreeObject), [name]: inner };
}

test('a change of every setting that needs a restart is reported, and of no other one', () => {
  const loaded = loadSettings({ env: { GATEHOUSE_CONFIG_YAML: JSON.stringify(createBase(1)) } });
  if (!loaded.ok) throw new Error(JSON.stringify(loaded.problems));
  const places = LEAVES.flatMap(([path]) => listPlaces(loaded.settings as unknown as TreeObject, path));
  const needingRestart = places.filter((place) => settingAt(place)?.appliesAfter !== undefined);
  expect(needingRestart.length).toBeGreaterThan(30);
  const reported = places.filter((place) => {
    const changed = withChange(loaded.settings as unknown as Tree, place) as unknown as Settings;
    const changes = findRestartChanges(loaded.settings, changed);
    // A list or a group that was omitted is reported as a whole.
    return changes.some((change) => formatPath(place).startsWith(change));
  });
  expect(reported.map(formatPath)).toEqual(needingRestart.map(formatPath));
});
