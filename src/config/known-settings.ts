import { z } from 'zod';
import { settingsSchema, settingsSections } from './schema.ts';
import type { SettingPath } from './setting-path.ts';

export type Kind = 'string' | 'number' | 'boolean' | 'array' | 'object';

/** What may stand at one place of the configuration, as far as names and kinds go. The schema judges the values. */
export interface KnownSetting {
  readonly kinds: ReadonlySet<Kind>;
  /** What it is called when it has a form of its own: `a duration such as 30s`. */
  readonly form?: string;
  readonly properties: ReadonlyMap<string, KnownSetting>;
  /** What a list holds. */
  readonly items?: KnownSetting;
  /** What stands under names of the operator's own choice. */
  readonly entries?: KnownSetting;
}

type Plain = string | number | boolean;

/** JSON Schema of the configuration, as it is written in the file. */
export interface JsonSchema {
  readonly type?: string;
  readonly title?: string;
  readonly description?: string;
  readonly default?: Plain | readonly Plain[] | Readonly<Record<string, unknown>>;
  readonly enum?: readonly Plain[];
  readonly const?: Plain;
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
}

let schema: JsonSchema | undefined;
let root: KnownSetting | undefined;

export function jsonSchema(): JsonSchema {
  schema ??= z.toJSONSchema(settingsSchema(settingsSections('.')), { io: 'input' }) as JsonSchema;
  return schema;
}

export function knownSettings(): KnownSetting {
  root ??= read(jsonSchema());
  return root;
}

const KINDS: Readonly<Record<string, Kind>> = {
  string: 'string',
  integer: 'number',
  number: 'number',
  boolean: 'boolean',
  array: 'array',
  object: 'object',
};

function read(json: JsonSchema): KnownSetting {
  const forms = [...(json.anyOf ?? []), ...(json.oneOf ?? [])].map(read);
  const kind = json.type === undefined ? undefined : KINDS[json.type];
  const own = Object.entries(json.properties ?? {}).map(([name, value]) => [name, read(value)] as const);
  const items = json.items ? read(json.items) : forms.find((form) => form.items)?.items;
  const entries =
    typeof json.additionalProperties === 'object'
      ? read(json.additionalProperties)
      : forms.find((form) => form.entries)?.entries;
  return {
    ...(json.title !== undefined && { form: formOf(json.title, json.examples?.[0]) }),
    kinds: new Set([...(kind ? [kind] : []), ...forms.flatMap((form) => [...form.kinds])]),
    properties: new Map([...forms.flatMap((form) => [...form.properties]), ...own]),
    ...(items && { items }),
    ...(entries && { entries }),
  };
}

const formOf = (title: string, example: unknown): string =>
  `a ${title}${typeof example === 'string' ? ` such as ${example}` : ''}`;

/** What is known about a place; undefined when there is no such place. */
export function settingAt(path: SettingPath): KnownSetting | undefined {
  let here: KnownSetting | undefined = knownSettings();
  for (const segment of path) here = here && childOf(here, segment);
  return here;
}

export function childOf(setting: KnownSetting, segment: string | number): KnownSetting | undefined {
  if (typeof segment === 'number') return setting.items;
  return setting.properties.get(segment) ?? setting.entries;
}

/** `passwordHash` beside `passwordHashFile`: a secret that may also stand in a file of its own. */
export function secretTwins(setting: KnownSetting): readonly string[] {
  return [...setting.properties.keys()].filter((name) => setting.properties.has(`${name}File`));
}

export function isSecret(path: SettingPath): boolean {
  let here: KnownSetting | undefined = knownSettings();
  for (const segment of path) {
    if (here && typeof segment === 'string' && secretTwins(here).includes(segment)) return true;
    here = here && childOf(here, segment);
  }
  return false;
}

/** Where in the whole configuration a name is known, for a setting that was put into the wrong place. */
export function placesOf(name: string): readonly SettingPath[] {
  const found: SettingPath[] = [];
  const walk = (setting: KnownSetting, path: SettingPath): void => {
    for (const [key, child] of setting.properties) {
      if (key === name) found.push([...path, key]);
      walk(child, [...path, key]);
    }
  };
  walk(knownSettings(), []);
  return found;
}
