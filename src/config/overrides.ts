import { clean, type Draft, type Environment, readValue, unknownName } from './draft.ts';
import { childOf, type KnownSetting, knownSettings, secretTwins, settingAt } from './known-settings.ts';
import { nearest } from './nearest.ts';
import { comparePaths, readPath, type SettingPath, writePath } from './setting-path.ts';
import { at, isObject, kindOf, type Tree, type TreeList, type TreeObject } from './tree.ts';

const PREFIX = 'GATEHOUSE_';

/** Names that begin like settings and mean something else, and what: a shell may have them set for other commands. */
export const OTHER_VARIABLES: Readonly<Record<string, string>> = {
  GATEHOUSE_CONFIG: 'the configuration file, where no `--config` is given',
  GATEHOUSE_CONFIG_YAML: 'the whole configuration instead of a file',
  GATEHOUSE_HOME: 'the folder in which `gatehouse login` keeps its tokens (default: `~/.config/gatehouse`)',
  GATEHOUSE_PROFILE: 'which sign-in `gatehouse token` and its siblings mean, where no `--profile` is given',
  GATEHOUSE_TRACE: '`1`: an internal error is printed with its stack trace',
};

interface Override {
  readonly path: SettingPath;
  readonly setting: KnownSetting;
  readonly text: string;
  readonly from: string;
}

/** `listen.tls.minVersion` is `GATEHOUSE_LISTEN__TLS__MIN_VERSION`. */
export const variableOf = (path: SettingPath): string =>
  PREFIX + path.map((segment) => upperSnake(String(segment))).join('__');

const upperSnake = (name: string): string =>
  name
    .replace(/([a-z0-9])([A-Z])/g, '$1_$2')
    .replace(/[^A-Za-z0-9]/g, '_')
    .toUpperCase();

const camelCase = (name: string): string =>
  name.toLowerCase().replace(/_+([a-z0-9])/g, (_, letter: string) => letter.toUpperCase());

/** Environment variables over the file. A variable that names no setting is a problem: it is most likely misspelt. */
export function applyEnvironment(draft: Draft, env: Environment): void {
  const overrides: Override[] = [];
  for (const [name, text] of Object.entries(env)) {
    if (text === undefined || !name.startsWith(PREFIX) || Object.hasOwn(OTHER_VARIABLES, name)) continue;
    const found = settingOf(name, draft.tree);
    if (found) overrides.push({ ...found, text, from: name });
    else if (!isServiceLink(name, env)) draft.findings.push({ path: [], message: unknownVariable(name) });
  }
  overrides.sort((a, b) => comparePaths(a.path, b.path));
  for (const override of overrides) apply(draft, override);
}

/** `--set path=value`, in their order, over everything else. */
export function applyFlags(draft: Draft, flags: readonly string[]): void {
  for (const flag of flags) {
    const split = flag.indexOf('=');
    const path = split > 0 ? readPath(flag.slice(0, split).trim()) : undefined;
    if (path === undefined) {
      // The text after "=" may be a secret; the part before it is not.
      const start = split > 0 ? flag.slice(0, split) : 'the flag';
      draft.findings.push({
        path: [],
        message: `--set takes path=value, such as listen.port=8443; ${start} is not that`,
      });
      continue;
    }
    let setting: KnownSetting | undefined = knownSettings();
    for (const [index, segment] of path.entries()) {
      const parent: KnownSetting = setting;
      setting = childOf(parent, segment);
      if (setting) continue;
      const message = unknownName(String(segment), parent);
      draft.findings.push({ path: path.slice(0, index + 1), message, from: '--set' });
      break;
    }
    if (setting) apply(draft, { path, setting, text: flag.slice(split + 1), from: '--set' });
  }
}

function settingOf(
  variable: string,
  tree: TreeObject,
): { readonly path: SettingPath; readonly setting: KnownSetting } | undefined {
  const path: (string | number)[] = [];
  let setting: KnownSetting | undefined = knownSettings();
  for (const word of variable.slice(PREFIX.length).split('__')) {
    const segment = segmentOf(word, setting, at(tree, path));
    if (segment === undefined) return undefined;
    path.push(segment);
    setting = childOf(setting, segment);
    if (setting === undefined) return undefined;
  }
  return { path, setting };
}

function segmentOf(word: string, setting: KnownSetting, here: Tree | undefined): string | number | undefined {
  for (const name of setting.properties.keys()) if (upperSnake(name) === word) return name;
  if (setting.items && /^\d{1,6}$/.test(word)) return Number(word);
  if (!setting.entries || !/^[A-Z0-9][A-Z0-9_]*$/.test(word)) return undefined;
  // A name of the operator's choice: the one in the file that is written like this, or a new one in camel case.
  const existing = isObject(here) ? Object.keys(here).find((name) => upperSnake(name) === word) : undefined;
  return existing ?? camelCase(word);
}

/** Kubernetes tells every pod about services nearby: one that is called `gatehouse` gives GATEHOUSE_PORT and the like. */
function isServiceLink(name: string, env: Environment): boolean {
  return [...name.matchAll(/_(?=SERVICE_(?:HOST|PORT)|PORT(?:_|$))/g)].some(
    ({ index }) => env[`${name.slice(0, index)}_SERVICE_HOST`] !== undefined,
  );
}

function unknownVariable(name: string): string {
  const near = nearest(name, allVariables());
  const hint = near === undefined ? 'unset it, or see `gatehouse schema`' : `did you mean ${near}?`;
  return `the environment variable ${name} names no setting; ${hint}`;
}

function allVariables(): readonly string[] {
  const names: string[] = Object.keys(OTHER_VARIABLES);
  const walk = (setting: KnownSetting, path: SettingPath): void => {
    for (const [name, child] of setting.properties) {
      names.push(variableOf([...path, name]));
      walk(child, [...path, name]);
    }
  };
  walk(knownSettings(), []);
  return names;
}

function apply(draft: Draft, { path, setting, text, from }: Override): void {
  const { value, problem } = readValue(text, setting);
  if (problem !== undefined) {
    draft.findings.push({ path, message: problem, from });
    return;
  }
  const taken = value === null ? null : clean(draft, value, setting, path);
  const place = holderOf(draft.tree, path);
  if (typeof place === 'string') {
    draft.findings.push({ path, message: place, from });
    return;
  }
  const last = path.at(-1);
  draft.templates.delete(writePath(path));
  draft.origins.set(writePath(path), from);
  if (Array.isArray(place)) place[Number(last)] = taken ?? null;
  // `null` takes away what was said before.
  else if (taken === null || taken === undefined) delete place[String(last)];
  else {
    place[String(last)] = taken;
    for (const twin of twinsOf(path)) delete place[twin];
  }
}

/** The list or group that holds the last segment, made where it is missing; or why that cannot be. */
function holderOf(tree: TreeObject, path: SettingPath): TreeObject | TreeList | string {
  let here: TreeObject | TreeList = tree;
  for (const [index, segment] of path.entries()) {
    if (typeof segment === 'number' && (!Array.isArray(here) || segment > here.length))
      return `cannot be set: ${writePath(path.slice(0, index))} has ${Array.isArray(here) ? here.length : 'no'} entries`;
    if (typeof segment === 'string' && Array.isArray(here))
      return `cannot be set: ${writePath(path.slice(0, index))} is a list`;
    if (index === path.length - 1) return here;
    const inner: Tree | undefined = at(here, [segment]);
    let next: TreeObject | TreeList;
    if (inner === undefined || inner === null) next = typeof path[index + 1] === 'number' ? [] : {};
    else if (typeof inner === 'object') next = inner;
    else return `cannot be set: ${writePath(path.slice(0, index + 1))} is ${kindOf(inner)}`;
    if (Array.isArray(here)) here[Number(segment)] = next;
    else here[String(segment)] = next;
    here = next;
  }
  return here;
}

/** A secret that is set here replaces the file it was said to be in, and the other way round. */
function twinsOf(path: SettingPath): readonly string[] {
  const parent = settingAt(path.slice(0, -1));
  const last = String(path.at(-1));
  return (parent ? secretTwins(parent) : []).flatMap((name) =>
    name === last ? [`${name}File`] : `${name}File` === last ? [name] : [],
  );
}
