import type { SettingPath } from './setting-path.ts';

/** A configuration as it was written, before the schema has read it. */
export type Tree = string | number | boolean | null | TreeList | TreeObject;
export type TreeList = Tree[];
export type TreeObject = { [name: string]: Tree };

export const isObject = (value: unknown): value is TreeObject =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** What stands there; undefined when nothing does. */
export function at(tree: Tree | undefined, path: SettingPath): Tree | undefined {
  let here = tree;
  for (const segment of path) {
    if (typeof segment === 'number') here = Array.isArray(here) ? here[segment] : undefined;
    else here = isObject(here) && Object.hasOwn(here, segment) ? here[segment] : undefined;
  }
  return here;
}

/** How a person would call what stands there. */
export function kindOf(value: Tree | undefined): string {
  if (value === undefined) return 'missing';
  if (value === null) return 'empty';
  if (Array.isArray(value)) return 'a list';
  if (typeof value === 'object') return 'a group of settings';
  return typeof value === 'string' ? 'text' : typeof value === 'number' ? 'a number' : 'true or false';
}
