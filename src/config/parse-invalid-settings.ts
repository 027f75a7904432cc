import * as z from 'zod';
import type { ParsedSections } from './cross-check.ts';
import { CROSS_CHECKS, PARSE_OPTIONS, type Settings, type SettingsSections } from './schema.ts';
import { formatPath, getAt, isObject, type SettingPath, type Tree, type TreeObject } from './setting-path.ts';

/**
 * The valid parts of an invalid configuration, so that they can still be cross-checked: whole sections, and single
 * entries of sections that are lists or records. `unchecked` are the parts that cannot be.
 */
export function parseForCrossChecks(
  sections: SettingsSections,
  tree: TreeObject,
  /** Sections whose content is not known. */
  unknown: ReadonlySet<string>,
): { readonly valid: Partial<ParsedSections>; readonly unchecked: readonly string[] } {
  const unchecked: string[] = [];
  const valid: Record<string, unknown> = {};
  const crossChecked = new Set<string>(CROSS_CHECKS.flatMap((rule) => rule.sections));
  const parse = (schema: z.core.$ZodType, value: Tree | undefined, path: readonly (string | number)[]): unknown => {
    const parsed = z.safeParse(schema, value, PARSE_OPTIONS);
    if (parsed.success) return parsed.data;
    if (crossChecked.has(String(path[0]))) unchecked.push(formatPath(path));
    return undefined;
  };

  for (const [name, section] of Object.entries(sections)) {
    if (unknown.has(name)) {
      if (crossChecked.has(name)) unchecked.push(name);
      continue;
    }
    const input = tree[name];
    const inner = section.unwrap();
    if (inner instanceof z.ZodArray && Array.isArray(input))
      valid[name] = input.map((value, index) => parse(inner.element, value, [name, index]));
    else if (inner instanceof z.ZodRecord && isObject(input))
      valid[name] = Object.fromEntries(
        Object.entries(input).map(([key, value]) => [key, parse(inner.valueType, value, [name, key])]),
      );
    else valid[name] = parse(section, input, [name]);
  }
  return { valid, unchecked };
}

/** Each round removes values that the previous one has made incomplete. */
const MAX_ROUNDS = 16;

/**
 * The settings without their invalid values, only for checking the files that they name: omitted settings have their
 * defaults, and entries of lists have other indexes. Undefined if none can be used.
 */
export function parseForFileChecks(sections: SettingsSections, tree: TreeObject): Settings | undefined {
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
  if (Array.isArray(node)) return node.filter((item) => !removed.has(item)).map((item) => omit(item, removed));
  if (!isObject(node)) return node;
  return Object.fromEntries(Object.entries(node).map(([name, inner]) => [name, omit(inner, removed)]));
}
