import { createAnnotatedSchema } from './annotated-schema.ts';
import type { SettingPath } from './setting-path.ts';
import type { ReadAt } from './units.ts';

export type ValueType = 'string' | 'number' | 'boolean' | 'array' | 'object';

/**
 * When a changed value applies, if not at the next reload. `restart`: the process (with several workers, the supervisor)
 * reads it at start. `workerRestart`: each worker reads it at start, so replacing the workers is enough.
 */
export type AppliesAfter = 'restart' | 'workerRestart';

declare module 'zod' {
  interface GlobalMeta {
    /** Inherited by the settings of a section. */
    readonly appliesAfter?: AppliesAfter | undefined;
    /** When the file that the setting names is read. */
    readonly readAt?: ReadAt | undefined;
  }
}

/** Names and types allowed at one place of the configuration. The schema validates the values. */
export interface KnownSetting {
  readonly types: ReadonlySet<ValueType>;
  /** What the value is: `duration`, `path`, `scope` and the like. */
  readonly titles: ReadonlySet<string>;
  /** For messages: `a duration such as 30s`. */
  readonly expected: string | undefined;
  /** The only values, if there is a list of them. */
  readonly values: readonly string[];
  readonly properties: ReadonlyMap<string, KnownSetting>;
  /** Elements of a list. */
  readonly items: KnownSetting | undefined;
  /** Values under names that the operator chooses. */
  readonly entries: KnownSetting | undefined;
  /** As in the file. */
  readonly defaultValue: JsonSchema['default'];
  readonly appliesAfter: AppliesAfter | undefined;
  /** It is undefined if the setting does not name a file. */
  readonly readAt: ReadAt | undefined;
}

type Scalar = string | number | boolean;

/** JSON Schema of the configuration file. */
export interface JsonSchema {
  readonly type?: string;
  readonly title?: string;
  readonly description?: string;
  readonly default?: Scalar | readonly Scalar[] | Readonly<Record<string, unknown>>;
  readonly enum?: readonly Scalar[];
  readonly const?: Scalar;
  readonly examples?: readonly unknown[];
  readonly properties?: Readonly<Record<string, JsonSchema>>;
  readonly required?: readonly string[];
  readonly items?: JsonSchema;
  readonly additionalProperties?: JsonSchema | boolean;
  readonly anyOf?: readonly JsonSchema[];
  readonly oneOf?: readonly JsonSchema[];
  readonly pattern?: string;
  readonly minimum?: number;
  readonly maximum?: number;
  // Our own keywords, only in `getAnnotatedSchema`.
  readonly appliesAfter?: AppliesAfter;
  readonly readAt?: ReadAt;
}

const OWN_KEYWORDS: readonly string[] = ['appliesAfter', 'readAt'];

/** Needed while a configuration is read. Half a megabyte is not kept until the next one. */
let root: WeakRef<KnownSetting> | undefined;

/** For the loader and tools/configuration-page.ts. */
export const getAnnotatedSchema = (): JsonSchema => createAnnotatedSchema() as JsonSchema;

/** For other programs, which may reject unknown keywords. A setting with such a name is an object, and stays. */
export const getJsonSchema = (): JsonSchema =>
  JSON.parse(JSON.stringify(getAnnotatedSchema()), (name, value: unknown) =>
    OWN_KEYWORDS.includes(name) && typeof value === 'string' ? undefined : value,
  ) as JsonSchema;

/** docs/configuration.schema.json, also the output of `gatehouse schema`. */
export const renderJsonSchema = (): string =>
  `${JSON.stringify({ title: 'gatehouse configuration', ...getJsonSchema() }, null, 2)}\n`;

export function getKnownSettings(): KnownSetting {
  const known = root?.deref() ?? readSchema(getAnnotatedSchema());
  if (root?.deref() !== known) root = new WeakRef(known);
  return known;
}

const VALUE_TYPES: Readonly<Record<string, ValueType>> = {
  string: 'string',
  integer: 'number',
  number: 'number',
  boolean: 'boolean',
  array: 'array',
  object: 'object',
};

function readSchema(json: JsonSchema, inherited?: AppliesAfter): KnownSetting {
  const { title, examples, appliesAfter = inherited } = json;
  const read = (inner: JsonSchema): KnownSetting => readSchema(inner, appliesAfter);
  const variants = [...(json.anyOf ?? []), ...(json.oneOf ?? [])].map(read);
  const type = json.type === undefined ? undefined : VALUE_TYPES[json.type];
  const { properties: ownProperties = {} } = json;
  const properties = Object.entries(ownProperties).map(([name, value]) => {
    // The loader reads secret files whenever it reads the configuration.
    const isSecretFile = name.endsWith('File') && Object.hasOwn(ownProperties, name.slice(0, -'File'.length));
    return [name, { ...read(value), ...(isSecretFile && { readAt: 'reload' as const }) }] as const;
  });
  const items = json.items ? read(json.items) : variants.find((variant) => variant.items)?.items;
  const entries =
    typeof json.additionalProperties === 'object'
      ? read(json.additionalProperties)
      : variants.find((variant) => variant.entries)?.entries;
  return {
    expected: title && formatExpected(title, examples?.[0]),
    titles: new Set([...(title ? [title] : []), ...variants.flatMap((variant) => [...variant.titles])]),
    types: new Set([...(type ? [type] : []), ...variants.flatMap((variant) => [...variant.types])]),
    values: (json.enum ?? []).map(String),
    properties: new Map([...variants.flatMap((variant) => [...variant.properties]), ...properties]),
    items,
    entries,
    defaultValue: json.default,
    appliesAfter,
    readAt: json.readAt ?? variants.find((variant) => variant.readAt)?.readAt,
  };
}

const formatExpected = (title: string, example: unknown): string =>
  `a ${title}${typeof example === 'string' ? ` such as ${example}` : ''}`;

/** Undefined when there is no setting with this path. */
export function settingAt(path: SettingPath): KnownSetting | undefined {
  let setting: KnownSetting | undefined = getKnownSettings();
  for (const segment of path) setting = setting && getChild(setting, segment);
  return setting;
}

export function getChild(setting: KnownSetting, segment: string | number): KnownSetting | undefined {
  if (typeof segment === 'number') return setting.items;
  return setting.properties.get(segment) ?? setting.entries;
}

/** Names of the settings in a group. */
export const listNames = (setting: KnownSetting): readonly string[] => [...setting.properties.keys()];

const isSecretName = ({ properties }: KnownSetting, name: string): boolean =>
  properties.has(name) && properties.has(`${name}File`);

/** A secret can be in a file of its own: `passwordHash` has a twin, `passwordHashFile`. */
export function listSecretNames(setting: KnownSetting): readonly string[] {
  return [...setting.properties.keys()].filter((name) => isSecretName(setting, name));
}

export function isSecret(path: SettingPath): boolean {
  let setting: KnownSetting | undefined = getKnownSettings();
  for (const segment of path) {
    if (setting && typeof segment === 'string' && isSecretName(setting, segment)) return true;
    setting = setting && getChild(setting, segment);
  }
  return false;
}

let settingPaths: readonly SettingPath[] | undefined;

/** Paths of all settings in groups; entries of lists and records are not included. */
export function listSettingPaths(): readonly SettingPath[] {
  settingPaths ??= collectPaths(getKnownSettings(), []);
  return settingPaths;
}

const collectPaths = (setting: KnownSetting, parent: SettingPath): readonly SettingPath[] =>
  listNames(setting).flatMap((name) => {
    const path = [...parent, name];
    const child = setting.properties.get(name);
    return [path, ...(child ? collectPaths(child, path) : [])];
  });

let allNames: ReadonlySet<string> | undefined;

/** Names of settings at any place, without those that the operator chooses. */
export function listAllNames(): ReadonlySet<string> {
  allNames ??= new Set(collectNames(getKnownSettings(), ({ properties }) => [...properties.keys()]));
  return allNames;
}

/** Names of secrets at any place. */
export const listAllSecretNames = (): ReadonlySet<string> => new Set(collectNames(getKnownSettings(), listSecretNames));

const collectNames = (setting: KnownSetting, list: (setting: KnownSetting) => readonly string[]): readonly string[] => [
  ...list(setting),
  ...[...setting.properties.values(), setting.items, setting.entries].flatMap((inner) =>
    inner === undefined ? [] : collectNames(inner, list),
  ),
];
