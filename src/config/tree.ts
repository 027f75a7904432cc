import type { SettingPath } from './setting-path.ts';

/** A configuration before validation. */
export type Tree = string | number | boolean | null | TreeList | TreeObject;
export type TreeList = Tree[];
export type TreeObject = { [name: string]: Tree };

export const isObject = (value: unknown): value is TreeObject =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

export function getAt(tree: Tree | undefined, path: SettingPath): Tree | undefined {
  let node = tree;
  for (const segment of path) {
    if (typeof segment === 'number') node = Array.isArray(node) ? node[segment] : undefined;
    else node = isObject(node) && Object.hasOwn(node, segment) ? node[segment] : undefined;
  }
  return node;
}

export function describeType(value: Tree | undefined): string {
  if (value === undefined) return 'missing';
  if (value === null) return 'empty';
  if (Array.isArray(value)) return 'a list';
  if (typeof value === 'object') return 'a group of settings';
  return typeof value === 'string' ? 'a string' : typeof value === 'number' ? 'a number' : 'true or false';
}
