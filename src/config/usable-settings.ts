import { z } from 'zod';
import { PARSE_OPTIONS, type Settings, type SettingsSections } from './schema.ts';
import type { SettingPath } from './setting-path.ts';
import { getAt, isObject, type Tree, type TreeObject } from './tree.ts';

/** Each round removes values that the previous one has made incomplete. */
const MAX_ROUNDS = 16;

/**
 * The settings without their invalid values, only for checking the files that they name: omitted settings have their
 * defaults, and entries of lists have other indexes. Undefined if none can be used.
 */
export function parseUsableSettings(sections: SettingsSections, tree: TreeObject): Settings | undefined {
  const schema = z.strictObject(sections);
  let remaining: TreeObject = structuredClone(tree);
  for (let round = 0; round < MAX_ROUNDS; round += 1) {
    const parsed = schema.safeParse(remaining, PARSE_OPTIONS);
    if (parsed.success) return parsed.data;
    const removed = new Set<Tree>();
    for (const issue of parsed.error.issues) {
      const path = issue.path.filter((segment) => typeof segment !== 'symbol');
      const keys = issue.code === 'unrecognized_keys' ? issue.keys : [undefined];
      for (const key of keys) remove(remaining, key === undefined ? path : [...path, key], removed);
    }
    remaining = omit(remaining, removed) as TreeObject;
  }
  return undefined;
}

/** A group that lacks a required setting is removed itself. */
function remove(tree: TreeObject, path: SettingPath, removed: Set<Tree>): void {
  for (let length = path.length; length > 0; length -= 1) {
    const parent = getAt(tree, path.slice(0, length - 1));
    const name = path[length - 1] ?? '';
    if (Array.isArray(parent) && Number(name) in parent) {
      // Its place is kept until all issues are handled: they name entries by their index.
      const marker: TreeObject = {};
      parent[Number(name)] = marker;
      removed.add(marker);
      return;
    }
    if (isObject(parent) && Object.hasOwn(parent, name)) {
      delete parent[name];
      return;
    }
  }
}

function omit(node: Tree, removed: ReadonlySet<Tree>): Tree {
  if (Array.isArray(node))
    return node.filter((item) => !removed.has(item)).map((item) => omit(item, removed));
  if (!isObject(node)) return node;
  return Object.fromEntries(Object.entries(node).map(([name, inner]) => [name, omit(inner, removed)]));
}
