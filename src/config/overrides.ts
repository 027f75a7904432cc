import { findClosestName } from '../lib/closest-name.ts';
import {
  getChild,
  getKnownSettings,
  type KnownSetting,
  listSecretNames,
  listSettingPaths,
  settingAt,
} from './known-settings.ts';
import { NON_SETTING_VARIABLES } from './non-setting-variables.ts';
import {
  describeUnknownName,
  dropUnknownSettings,
  type Environment,
  forgetGroup,
  parseValue,
  type RawSettings,
} from './raw-settings.ts';
import {
  comparePaths,
  describeType,
  formatPath,
  getAt,
  isObject,
  parsePath,
  type SettingPath,
  type Tree,
  type TreeList,
  type TreeObject,
} from './setting-path.ts';

const PREFIX = 'GATEHOUSE_';

interface ResolvedSetting {
  readonly path: SettingPath;
  readonly setting: KnownSetting;
}

interface Override extends ResolvedSetting {
  readonly text: string;
  readonly from: string;
}

/** `listen.tls.minVersion` is `GATEHOUSE_LISTEN__TLS__MIN_VERSION`. */
export const getVariableName = (path: SettingPath): string =>
  PREFIX + path.map((segment) => toUpperSnakeCase(String(segment))).join('__');

const toUpperSnakeCase = (name: string): string =>
  name
    .replace(/([a-z0-9])([A-Z])/g, '$1_$2')
    .replace(/[^A-Za-z0-9]/g, '_')
    .toUpperCase();

const toCamelCase = (name: string): string =>
  name.toLowerCase().replace(/_+([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());

/** Environment variables override the file. One that names no setting is an error: it is most likely misspelt. */
export function applyEnvironment(raw: RawSettings, env: Environment): void {
  const overrides: Override[] = [];
  for (const [name, text] of Object.entries(env)) {
    if (text === undefined || !name.startsWith(PREFIX) || Object.hasOwn(NON_SETTING_VARIABLES, name)) continue;
    const found = findSettingByVariable(name, raw.tree);
    if (found) overrides.push({ ...found, text, from: name });
    else if (!isServiceLink(name, env)) raw.findings.push({ path: [], message: describeUnknownVariable(name) });
  }
  overrides.sort((a, b) => comparePaths(a.path, b.path));
  for (const override of overrides) applyOverride(raw, override);
}

/** `--set path=value`, in order, overrides everything else. */
export function applyFlags(raw: RawSettings, flags: readonly string[]): void {
  for (const flag of flags) {
    const split = flag.indexOf('=');
    const path = split > 0 ? parsePath(flag.slice(0, split).trim()) : undefined;
    if (path === undefined) {
      // Quote only the part before "=": the value may be a secret.
      const got = split > 0 ? `; got ${flag.slice(0, split)}` : ', and there is no =';
      raw.findings.push({
        path: [],
        message: `--set expects path=value, such as listen.port=8443${got}`,
      });
      continue;
    }
    const resolved = resolvePath(path);
    if ('unknown' in resolved) {
      const message = describeUnknownName(String(resolved.unknown.at(-1)), resolved.parent);
      raw.findings.push({ path: resolved.unknown, message, from: '--set' });
    } else applyOverride(raw, { ...resolved, text: flag.slice(split + 1), from: '--set' });
  }
}

function resolvePath(
  path: SettingPath,
): ResolvedSetting | { readonly unknown: SettingPath; readonly parent: KnownSetting } {
  let setting = getKnownSettings();
  for (const [index, segment] of path.entries()) {
    const child = getChild(setting, segment);
    if (child === undefined) return { unknown: path.slice(0, index + 1), parent: setting };
    setting = child;
  }
  return { path, setting };
}

function findSettingByVariable(variable: string, tree: TreeObject): ResolvedSetting | undefined {
  const path: (string | number)[] = [];
  let setting = getKnownSettings();
  for (const word of variable.slice(PREFIX.length).split('__')) {
    const segment = findSegment(word, setting, getAt(tree, path));
    const child = segment === undefined ? undefined : getChild(setting, segment);
    if (segment === undefined || child === undefined) return undefined;
    path.push(segment);
    setting = child;
  }
  return { path, setting };
}

function findSegment(word: string, setting: KnownSetting, node: Tree | undefined): string | number | undefined {
  for (const name of setting.properties.keys()) if (toUpperSnakeCase(name) === word) return name;
  if (setting.items && /^\d{1,6}$/.test(word)) return Number(word);
  if (!setting.entries || !/^[A-Z0-9][A-Z0-9_]*$/.test(word)) return undefined;
  // A name that the operator chooses: one that exists in the file, or a new one in camel case.
  const existing = isObject(node) ? Object.keys(node).find((name) => toUpperSnakeCase(name) === word) : undefined;
  return existing ?? toCamelCase(word);
}

/** Kubernetes sets variables for every service: one named `gatehouse` gives GATEHOUSE_PORT and the like. */
function isServiceLink(name: string, env: Environment): boolean {
  return [...name.matchAll(/_(?=SERVICE_(?:HOST|PORT)|PORT(?:_|$))/g)].some(
    ({ index }) => env[`${name.slice(0, index)}_SERVICE_HOST`] !== undefined,
  );
}

function describeUnknownVariable(name: string): string {
  const closest = findClosestName(name, [
    ...Object.keys(NON_SETTING_VARIABLES),
    ...listSettingPaths().map(getVariableName),
  ]);
  const hint = closest === undefined ? 'unset it, or see `gatehouse schema`' : `did you mean ${closest}?`;
  return `the environment variable ${name} names no setting; ${hint}`;
}

function applyOverride(raw: RawSettings, { path, setting, text, from }: Override): void {
  const { value, problem } = parseValue(text, setting);
  if (problem !== undefined) {
    raw.findings.push({ path, message: problem, from });
    return;
  }
  forgetGroup(raw, path);
  const cleaned = value === null ? null : dropUnknownSettings(raw, value, setting, path);
  const parent = findOrCreateParent(raw.tree, path);
  if (typeof parent === 'string') {
    raw.findings.push({ path, message: parent, from });
    return;
  }
  const last = path.at(-1);
  raw.templates.delete(formatPath(path));
  raw.origins.set(formatPath(path), from);
  if (Array.isArray(parent)) parent[Number(last)] = cleaned ?? null;
  // `null` removes a setting of the file.
  else if (cleaned === null || cleaned === undefined) delete parent[String(last)];
  else {
    parent[String(last)] = cleaned;
    for (const twin of listTwins(path)) delete parent[twin];
  }
}

/** The list or group of the last segment, created if missing; or why it cannot be. */
function findOrCreateParent(tree: TreeObject, path: SettingPath): TreeObject | TreeList | string {
  let node: TreeObject | TreeList = tree;
  for (const [index, segment] of path.entries()) {
    if (typeof segment === 'number' && (!Array.isArray(node) || segment > node.length))
      return `cannot be set: ${formatPath(path.slice(0, index))} has ${Array.isArray(node) ? node.length : 'no'} entries`;
    if (typeof segment === 'string' && Array.isArray(node))
      return `cannot be set: ${formatPath(path.slice(0, index))} is a list`;
    if (index === path.length - 1) return node;
    const inner: Tree | undefined = getAt(node, [segment]);
    let next: TreeObject | TreeList;
    if (inner === undefined || inner === null) next = typeof path[index + 1] === 'number' ? [] : {};
    else if (typeof inner === 'object') next = inner;
    else return `cannot be set: ${formatPath(path.slice(0, index + 1))} is ${describeType(inner)}`;
    if (Array.isArray(node)) node[Number(segment)] = next;
    else node[String(segment)] = next;
    node = next;
  }
  return node;
}

/** Setting a secret replaces the file it was to be read from, and vice versa. */
function listTwins(path: SettingPath): readonly string[] {
  const parent = settingAt(path.slice(0, -1));
  const last = String(path.at(-1));
  return (parent ? listSecretNames(parent) : []).flatMap((name) =>
    name === last ? [`${name}File`] : `${name}File` === last ? [name] : [],
  );
}
