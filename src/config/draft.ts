import { childOf, isSecret, type KnownSetting, knownSettings, placesOf } from './known-settings.ts';
import { nearest } from './nearest.ts';
import { type SettingPath, writePath } from './setting-path.ts';
import { substitute } from './substitute.ts';
import { isObject, type Tree, type TreeObject } from './tree.ts';
import { readYaml } from './yaml-source.ts';

export type Environment = Readonly<Record<string, string | undefined>>;

export interface Finding {
  readonly path: SettingPath;
  readonly message: string;
  readonly line?: number;
  /** What set it, when that was not the file. */
  readonly from?: string;
}

/** A configuration on its way from text to settings, with what was found wrong so far. */
export interface Draft {
  readonly tree: TreeObject;
  readonly findings: Finding[];
  /** Places whose value is lost already: what the schema says about them would be an echo. */
  readonly lost: SettingPath[];
  /** What a value looked like before variables were filled in: problems quote this and not the value. */
  readonly templates: Map<string, { readonly value: string; readonly template: string }>;
  /** Which variable or flag set a place. */
  readonly origins: Map<string, string>;
}

const MAX_DEPTH = 24;
const MAX_VALUES = 500_000;

export const newDraft = (): Draft => ({
  tree: {},
  findings: [],
  lost: [],
  templates: new Map(),
  origins: new Map(),
});

/** Takes what a file says into the draft: known names only, variables filled in. */
export function takeFile(draft: Draft, value: Tree | undefined, env: Environment): void {
  if (value === undefined || value === null) return;
  if (!isObject(value)) {
    draft.findings.push({ path: [], message: 'must be settings such as `listen:`, one below the other' });
    return;
  }
  const taken = clean(draft, value, knownSettings(), [], env);
  if (isObject(taken)) Object.assign(draft.tree, taken);
}

/**
 * A copy with known names only. Each unknown name becomes a finding, so that the schema sees a sound shape and
 * can judge the rest. With `env`, variables are filled in.
 */
export function clean(
  draft: Draft,
  value: Tree,
  setting: KnownSetting,
  path: SettingPath,
  env?: Environment,
): Tree | undefined {
  let left = MAX_VALUES;
  const visit = (here: Tree, known: KnownSetting, at: SettingPath): Tree | undefined => {
    left -= 1;
    if (left < 0 || at.length > MAX_DEPTH) {
      if (left >= -1) draft.findings.push({ path: at, message: 'is nested too deeply or too large' });
      left = Math.min(left, left < 0 ? -2 : left);
      return undefined;
    }
    if (typeof here === 'string') return env ? filled(draft, here, known, at, env) : here;
    if (Array.isArray(here)) {
      const { items } = known;
      // What cannot be a list is handed on empty: the schema says so, and nobody walks through it.
      return items ? here.map((item, index) => visit(item, items, [...at, index]) ?? null) : [];
    }
    if (!isObject(here)) return here;
    if (known.properties.size === 0 && !known.entries) return {};
    const made: TreeObject = {};
    for (const [name, inner] of Object.entries(here)) {
      const child = name === '__proto__' ? undefined : childOf(known, name);
      if (child === undefined) {
        draft.findings.push({ path: [...at, name], message: unknownName(name, known) });
        draft.lost.push([...at, name]);
        continue;
      }
      const taken = visit(inner, child, [...at, name]);
      if (taken !== undefined) made[name] = taken;
    }
    return made;
  };
  return visit(value, setting, path);
}

function filled(
  draft: Draft,
  text: string,
  known: KnownSetting,
  path: SettingPath,
  env: Environment,
): Tree | undefined {
  const result = substitute(text, env);
  switch (result.kind) {
    case 'plain':
      return text;
    case 'problem':
      draft.findings.push({ path, message: result.message });
      draft.lost.push(path);
      return undefined;
    case 'filled': {
      draft.templates.set(writePath(path), { value: result.text, template: text });
      return readValue(result.text, known).value;
    }
  }
}

/**
 * A value that came as bare text (a variable, a flag). What the setting can be decides how it is read: text
 * stays as it is, so that an id in braces or a password of digits is no YAML; a number, a switch or a list is
 * read as YAML; a list of words may be written with commas.
 */
export function readValue(
  text: string,
  known: KnownSetting,
): { readonly value: Tree; readonly problem?: string } {
  const { kinds } = known;
  if (kinds.size === 1 && kinds.has('string')) return { value: text };
  // A wildcard, and no alias: there are no anchors in a single value.
  if (kinds.has('array') && !kinds.has('string') && text.startsWith('*')) return { value: wordsOf(text) };
  const yaml = readYaml(text);
  if (!yaml.ok)
    return kinds.has('string')
      ? { value: text }
      : { value: null, problem: yaml.problems[0]?.message ?? 'not valid YAML' };
  const value = yaml.value ?? null;
  if (Array.isArray(value) && !kinds.has('array')) return { value: text };
  if (isObject(value) && !kinds.has('object')) return { value: text };
  if (typeof value === 'string' && !kinds.has('string') && kinds.has('array'))
    return { value: wordsOf(value) };
  return { value };
}

const wordsOf = (text: string): string[] => text.split(',').map((item) => item.trim());

export function unknownName(name: string, known: KnownSetting): string {
  const names = [...known.properties.keys()];
  const near = nearest(name, names);
  if (near !== undefined) return `is not a known setting; did you mean "${near}"?`;
  const places = placesOf(name).filter((path) => path.length > 1);
  if (places.length > 0 && places.length <= 3) {
    const shown = places.map((path) => `"${writePath(path)}"`).join(' or ');
    return `is not a known setting here; did you mean ${shown}?`;
  }
  const list = names.length === 0 ? 'there are none here' : `known here: ${names.sort().join(', ')}`;
  return `is not a known setting; take it out (${list})`;
}

/** A value as a problem may show it: never a secret, never long. */
export function shown(path: SettingPath, value: Tree | undefined): string | undefined {
  if (isSecret(path) || value === undefined || value === null || typeof value === 'object') return undefined;
  const text = JSON.stringify(value);
  return text.length > 60 ? `${text.slice(0, 57)}…"` : text;
}
