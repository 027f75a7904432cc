import { z } from 'zod';
import type { ParsedSections } from './cross-check.ts';
import { CROSS_CHECKS, PARSE_OPTIONS, type SettingsSections } from './schema.ts';
import { formatPath } from './setting-path.ts';
import { isObject, type Tree, type TreeObject } from './tree.ts';

/**
 * The valid parts of an invalid configuration, so that they can still be cross-checked: whole sections, and single
 * entries of sections that are lists or records. `unchecked` are the parts that cannot be.
 */
export function parseValidSections(
  sections: SettingsSections,
  tree: TreeObject,
  /** Sections whose content is not known. */
  unknown: ReadonlySet<string>,
): { readonly valid: Partial<ParsedSections>; readonly unchecked: readonly string[] } {
  const unchecked: string[] = [];
  const valid: Record<string, unknown> = {};
  const crossChecked = new Set<string>(CROSS_CHECKS.flatMap((rule) => rule.sections));
  const parse = (
    schema: z.core.$ZodType,
    value: Tree | undefined,
    path: readonly (string | number)[],
  ): unknown => {
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
