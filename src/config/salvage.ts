import { COMPARED, type SoundSettings } from './cross-check.ts';
import { ONCE, type SettingsSections } from './schema.ts';
import { writePath } from './setting-path.ts';
import { isObject, type Tree, type TreeObject } from './tree.ts';

interface Reader {
  safeParse(value: unknown, how: typeof ONCE): { readonly success: boolean; readonly data?: unknown };
}

/**
 * What of a broken configuration is sound by itself, so that the rest can still be compared: sections as a whole,
 * and one by one the entries of the four sections that are lists or groups of the operator's own things. An entry
 * that is not sound leaves a hole where it stood, so that indexes and names keep their meaning.
 */
export function salvage(
  sections: SettingsSections,
  tree: TreeObject,
): { readonly sound: SoundSettings; readonly unchecked: readonly string[] } {
  const unchecked: string[] = [];
  const sound: Record<string, unknown> = {};

  const lists: Readonly<Record<string, Reader>> = {
    integrations: sections.integrations.unwrap().element,
    routes: sections.routes.unwrap().element,
  };
  const groups: Readonly<Record<string, Reader>> = {
    directories: sections.directories.unwrap().valueType,
    upstreams: sections.upstreams.unwrap().valueType,
  };
  const one = (reader: Reader, value: Tree, path: readonly (string | number)[]): unknown => {
    const parsed = reader.safeParse(value, ONCE);
    if (parsed.success) return parsed.data;
    if (COMPARED.includes(String(path[0]))) unchecked.push(writePath(path));
    return undefined;
  };

  for (const [name, reader] of Object.entries(sections)) {
    const given = tree[name];
    const whole = reader.safeParse(given, ONCE);
    const [item, member] = [lists[name], groups[name]];
    if (whole.success) sound[name] = whole.data;
    else if (item && Array.isArray(given))
      sound[name] = given.map((value, index) => one(item, value, [name, index]));
    else if (member && isObject(given))
      sound[name] = Object.fromEntries(
        Object.entries(given).map(([key, value]) => [key, one(member, value, [name, key])]),
      );
    else if (COMPARED.includes(name)) unchecked.push(name);
  }
  return { sound, unchecked };
}
