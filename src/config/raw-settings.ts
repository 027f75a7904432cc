import { findClosestName } from '../lib/closest-name.ts';
import {
  getChild,
  getKnownSettings,
  isSecret,
  type KnownSetting,
  listNames,
  listSettingPaths,
} from './known-settings.ts';
import { parseYaml } from './parse-yaml.ts';
import { formatPath, isObject, type SettingPath, type Tree, type TreeObject } from './setting-path.ts';
import { substitute } from './substitute.ts';

export type Environment = Readonly<Record<string, string | undefined>>;

export interface Finding {
  readonly path: SettingPath;
  readonly message: string;
  readonly line?: number;
  readonly column?: number;
  /** Shows the line of the file below the message: for mistakes that are easier seen than described. */
  readonly showsLine?: boolean;
  /** The environment variable, flag or setting that set the value, if it was not the file. */
  readonly from?: string | undefined;
}

/** A configuration while it is read: the merged tree and the problems found so far. */
export interface RawSettings {
  readonly tree: TreeObject;
  readonly findings: Finding[];
  /** Paths whose value has already been reported: problems of the schema with them would be repetitions. */
  readonly invalidPaths: SettingPath[];
  /** Sections that are most likely given under an unknown name: what depends on them would be reported as well. */
  readonly misspelledSections: Set<string>;
  /** Values before variables were substituted: messages quote these, since a variable may hold a secret. */
  readonly templates: Map<string, { readonly value: string; readonly template: string }>;
  /** By path: the variable or flag that set it. */
  readonly origins: Map<string, string>;
}

const MAX_DEPTH = 24;
const MAX_VALUES = 500_000;

export const createRawSettings = (): RawSettings => ({
  tree: {},
  findings: [],
  invalidPaths: [],
  misspelledSections: new Set(),
  templates: new Map(),
  origins: new Map(),
});

/** Adds the content of the file to the raw: known names only, variables substituted. */
export function applyFile(raw: RawSettings, value: Tree | undefined, env: Environment): void {
  if (value === undefined || value === null) return;
  if (!isObject(value)) {
    raw.findings.push({ path: [], message: 'must be settings such as `listen:`, one below the other' });
    return;
  }
  const cleaned = dropUnknownSettings(raw, value, getKnownSettings(), [], env);
  if (isObject(cleaned)) Object.assign(raw.tree, cleaned);
}

/**
 * A copy with known names only, so that the schema can validate the rest. Unknown names are reported. With `env`,
 * variables are substituted.
 */
export function dropUnknownSettings(
  raw: RawSettings,
  value: Tree,
  setting: KnownSetting,
  path: SettingPath,
  env?: Environment,
): Tree | undefined {
  let remaining = MAX_VALUES;
  const visit = (node: Tree, known: KnownSetting, at: SettingPath): Tree | undefined => {
    remaining -= 1;
    if (remaining < 0 || at.length > MAX_DEPTH) {
      if (remaining >= -1) raw.findings.push({ path: at, message: 'is nested too deeply or is too large' });
      remaining = Math.min(remaining, remaining < 0 ? -2 : remaining);
      return undefined;
    }
    if (typeof node === 'string') return env ? substituteVariables(raw, node, known, at, env) : node;
    if (Array.isArray(node)) {
      const { items } = known;
      // A list where none is allowed: the schema reports it, and its content does not matter.
      return items ? node.map((item, index) => visit(item, items, [...at, index]) ?? null) : [];
    }
    if (!isObject(node)) return node;
    if (known.properties.size === 0 && !known.entries) return {};
    const result: TreeObject = {};
    for (const [name, inner] of Object.entries(node)) {
      const child = name === '__proto__' ? undefined : getChild(known, name);
      if (child === undefined) {
        raw.findings.push({ path: [...at, name], message: describeUnknownName(name, known) });
        raw.invalidPaths.push([...at, name]);
        const closest = at.length === 0 ? findClosestName(name, listNames(known)) : undefined;
        if (closest !== undefined && !Object.hasOwn(node, closest)) {
          raw.misspelledSections.add(closest);
          raw.invalidPaths.push([closest]);
        }
        continue;
      }
      const cleaned = visit(inner, child, [...at, name]);
      if (cleaned !== undefined) result[name] = cleaned;
    }
    return result;
  };
  return visit(value, setting, path);
}

/** An override replaces a group: what was recorded about the settings in it no longer applies. */
export function forgetGroup(raw: RawSettings, group: SettingPath): void {
  const prefix = formatPath(group);
  for (const records of [raw.templates, raw.origins])
    for (const path of records.keys())
      if (path.startsWith(`${prefix}.`) || path.startsWith(`${prefix}[`)) records.delete(path);
}

function substituteVariables(
  raw: RawSettings,
  text: string,
  known: KnownSetting,
  path: SettingPath,
  env: Environment,
): Tree | undefined {
  const result = substitute(text, env);
  switch (result.kind) {
    case 'unchanged':
      return text;
    case 'problem':
      raw.findings.push({ path, message: result.message });
      raw.invalidPaths.push(path);
      return undefined;
    case 'substituted': {
      raw.templates.set(formatPath(path), { value: result.text, template: text });
      return parseValue(result.text, known).value;
    }
  }
}

/**
 * Parses the text of a variable or a flag by the type of the setting. Text is taken as it is, so that an id in braces or
 * a password of digits is not read as YAML. Numbers, booleans and lists are YAML; a list can also be `a,b`.
 */
export function parseValue(text: string, known: KnownSetting): { readonly value: Tree; readonly problem?: string } {
  const { types } = known;
  if (types.size === 1 && types.has('string')) return { value: text };
  // `*` is a wildcard here, not a YAML alias.
  if (types.has('array') && !types.has('string') && text.startsWith('*')) return { value: splitList(text) };
  const yaml = parseYaml(text);
  const [problem] = yaml.ok ? yaml.duplicates : yaml.problems;
  if (!yaml.ok || problem !== undefined)
    return types.has('string') ? { value: text } : { value: null, problem: problem?.message ?? 'not valid YAML' };
  const value = yaml.value ?? null;
  if (Array.isArray(value) && !types.has('array')) return { value: text };
  if (isObject(value) && !types.has('object')) return { value: text };
  if (typeof value === 'string' && !types.has('string') && types.has('array')) return { value: splitList(value) };
  return { value };
}

const splitList = (text: string): string[] => text.split(',').map((item) => item.trim());

export function describeUnknownName(name: string, known: KnownSetting): string {
  const names = listNames(known);
  const closest = findClosestName(name, names);
  if (closest !== undefined) return `is not a known setting; did you mean "${closest}"?`;
  const paths = listSettingPaths().filter((path) => path.length > 1 && path.at(-1) === name);
  if (paths.length > 0 && paths.length <= 3) {
    const suggestions = paths.map((path) => `"${formatPath(path)}"`).join(' or ');
    return `is not a known setting here; did you mean ${suggestions}?`;
  }
  const list = names.length === 0 ? 'no settings are allowed here' : `known here: ${names.toSorted().join(', ')}`;
  return `is not a known setting; remove it (${list})`;
}

/** A value for a message: never a secret, never long. */
export function formatValue(path: SettingPath, value: Tree | undefined): string | undefined {
  if (isSecret(path) || value === undefined || value === null || typeof value === 'object') return undefined;
  const text = JSON.stringify(value);
  return text.length > 60 ? `${text.slice(0, 57)}…"` : text;
}
