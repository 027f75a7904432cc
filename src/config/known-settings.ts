import { z } from 'zod';
import { settingsSchema } from './schema.ts';
import type { SettingPath } from './setting-path.ts';

export type Kind = 'string' | 'number' | 'boolean' | 'array' | 'object';

/** What may stand at one place of the configuration, as far as names and kinds go. The schema judges the values. */
export interface KnownSetting {
  readonly kinds: ReadonlySet<Kind>;
  readonly properties: ReadonlyMap<string, KnownSetting>;
  /** What a list holds. */
  readonly items?: KnownSetting;
  /** What stands under names of the operator's own choice. */
  readonly entries?: KnownSetting;
}

/** JSON Schema of the configuration, as it is written in the file. */
export interface JsonSchema {
  readonly type?: string;
  readonly description?: string;
  readonly default?: unknown;
  readonly enum?: readonly unknown[];
  readonly const?: unknown;
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
  schema ??= z.toJSONSchema(settingsSchema('.'), { io: 'input' }) as JsonSchema;
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
    kinds: new Set([...(kind ? [kind] : []), ...forms.flatMap((form) => [...form.kinds])]),
    properties: new Map([...forms.flatMap((form) => [...form.properties]), ...own]),
    ...(items && { items }),
    ...(entries && { entries }),
  };
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

/** The known name somebody most likely meant. */
export function nearest(name: string, known: Iterable<string>): string | undefined {
  const plain = fold(name);
  let best: { readonly name: string; readonly distance: number } | undefined;
  for (const candidate of known) {
    const distance = editDistance(plain, fold(candidate));
    const allowed = Math.max(1, Math.floor(Math.min(plain.length, candidate.length) / 3));
    if (distance <= Math.min(3, allowed) && distance < (best?.distance ?? Number.POSITIVE_INFINITY))
      best = { name: candidate, distance };
  }
  return best?.name;
}

const fold = (name: string): string =>
  name
    .toLowerCase()
    .replace(/[-_.\s]/g, '')
    .slice(0, 64);

/** Insertions, removals, replacements and swaps of neighbours that lead from one word to the other. */
function editDistance(a: string, b: string): number {
  let before: number[] = [];
  let previous = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let i = 1; i <= a.length; i += 1) {
    const row = [i];
    for (let j = 1; j <= b.length; j += 1) {
      const same = a[i - 1] === b[j - 1];
      let cost = Math.min(
        (row[j - 1] ?? 0) + 1,
        (previous[j] ?? 0) + 1,
        (previous[j - 1] ?? 0) + (same ? 0 : 1),
      );
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1])
        cost = Math.min(cost, (before[j - 2] ?? 0) + 1);
      row.push(cost);
    }
    before = previous;
    previous = row;
  }
  return previous[b.length] ?? 0;
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
