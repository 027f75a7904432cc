import { parseScope } from '../domain/scope.ts';
import { findClosestName } from '../lib/closest-name.ts';
import { type KnownSetting, listAllNames, type ValueType } from './known-settings.ts';
import { isObject, type Tree } from './tree.ts';

/** What to write instead of a value of the wrong type or form, if that is evident. */
export function suggestRemedy(setting: KnownSetting, value: Tree | undefined): string | undefined {
  const { titles } = setting;
  if (titles.has('scope')) return suggestScopeRemedy(value);
  if (titles.has('duration')) return suggestDuration(value);
  if (typeof value === 'string') return suggestForText(setting, value);
  if (Array.isArray(value)) return suggestForList(setting);
  if (isObject(value)) return suggestForGroup(setting);
  if (typeof value === 'number' || typeof value === 'boolean') return suggestForScalar(setting, value);
  return undefined;
}

/** Longer values are not repeated. */
const MAX_QUOTED = 120;

/** The only type of a setting. */
const isOnly = ({ types }: KnownSetting, type: ValueType): boolean => types.size === 1 && types.has(type);

function suggestForText(setting: KnownSetting, text: string): string | undefined {
  if (isOnly(setting, 'boolean')) {
    if (/^(?:yes|on|y|true|enabled?)$/i.test(text)) return 'write true';
    if (/^(?:no|off|n|false|disabled?)$/i.test(text)) return 'write false';
    return undefined;
  }
  if (isOnly(setting, 'number')) return /^\d+$/.test(text) ? 'write it without quotes' : undefined;
  if (isOnly(setting, 'array')) return suggestList(setting.items?.values ?? [], text);
  if (isOnly(setting, 'object')) {
    const name = /^([A-Za-z][\w-]*):\S/.exec(text)?.[1];
    return name !== undefined && listAllNames().has(name)
      ? `there is no space after the colon of \`${name}\`; write \`${name}: \` and then the value`
      : 'write its settings in the lines below, indented, each as `name: value`';
  }
  return undefined;
}

/** Names of OAuth grant types, and of other products, for the values of `grants`. */
const GRANT_TYPE_NAMES: readonly (readonly [name: RegExp, value: string])[] = [
  [/client.?credentials|client.?secret/i, 'client'],
  [/authori[sz]ation.?code|pkce/i, 'code'],
  [/device.?(?:code|flow|authori[sz]ation)/i, 'device'],
  [/token.?exchange|jwt.?bearer/i, 'exchange'],
  [/mtls|tls.?client|x509/i, 'certificate'],
];

/** The allowed value that is spelled alike, or means the same. */
export function findMeantValue(text: string, allowed: readonly string[]): string | undefined {
  const synonym = GRANT_TYPE_NAMES.find(([name, value]) => allowed.includes(value) && name.test(text));
  return findClosestName(text, allowed) ?? synonym?.[1];
}

function suggestList(allowed: readonly string[], text: string): string {
  const words = text.length > MAX_QUOTED ? ['a', 'b'] : splitValues(text);
  if (allowed.length === 0) return `write a list: [${words.join(', ')}]`;
  const values = words.map((word) => (allowed.includes(word) ? word : findMeantValue(word, allowed)));
  return values.includes(undefined)
    ? `write a list with some of these: ${allowed.join(', ')}`
    : `write a list: [${values.join(', ')}]`;
}

function suggestForList(setting: KnownSetting): string | undefined {
  if (isOnly(setting, 'object'))
    return 'remove the dashes: each of its settings is a line `name: value`, indented below its name';
  return isOnly(setting, 'string')
    ? 'write a single value; if the value itself begins with [, put it in quotes'
    : undefined;
}

function suggestForGroup(setting: KnownSetting): string | undefined {
  if (setting.types.has('array') && !setting.types.has('object'))
    return 'begin each entry with a dash and a space: `- `';
  return isOnly(setting, 'string')
    ? 'write a single value; if the value itself begins with {, put it in quotes'
    : undefined;
}

function suggestForScalar(setting: KnownSetting, value: number | boolean): string | undefined {
  if (isOnly(setting, 'string')) return `put it in quotes: "${value}"`;
  if (isOnly(setting, 'boolean')) return value === 1 ? 'write true' : value === 0 ? 'write false' : undefined;
  return isOnly(setting, 'array') ? `write a list: [${value}]` : undefined;
}

const splitValues = (text: string): string[] =>
  text
    .split(/[\s,;|]+/)
    .filter((word) => word !== '')
    .map((word) => (/^[A-Za-z0-9/][\w./-]*$/.test(word) ? word : JSON.stringify(word)));

const DURATION_WORDS: readonly (readonly [RegExp, string])[] = [
  [/^(?:ms|millis?|milliseconds?)$/i, 'ms'],
  [/^(?:s|secs?|seconds?)$/i, 's'],
  [/^(?:m|mins?|minutes?)$/i, 'm'],
  [/^(?:h|hrs?|hours?)$/i, 'h'],
  [/^(?:d|days?)$/i, 'd'],
];

function suggestDuration(value: Tree | undefined): string | undefined {
  if (typeof value === 'number') return `add the unit: write ${value}s for seconds`;
  if (typeof value !== 'string') return undefined;
  if (/^\d{1,9}$/.test(value)) return `add the unit: write ${value}s for seconds`;
  const [, count, word = ''] = /^(\d{1,9})\s*([a-z]+)$/i.exec(value.trim()) ?? [];
  const unit = DURATION_WORDS.find(([pattern]) => pattern.test(word))?.[1];
  return unit === undefined || `${count}${unit}` === value ? undefined : `write ${count}${unit}`;
}

function suggestScopeRemedy(value: Tree | undefined): string | undefined {
  if (Array.isArray(value)) return 'write one string, and separate resources with ; as in files:read;reports:read';
  if (typeof value !== 'string' || value.length > MAX_QUOTED) return undefined;
  const scope = normalizeScope(value);
  return scope === undefined || scope === value
    ? undefined
    : `separate resources with ; or one space, and permissions with a comma without spaces: ${scope}`;
}

/** The scope that was meant, if only separators or the letter case of permissions are wrong. */
function normalizeScope(text: string): string | undefined {
  const normalized = text
    .trim()
    // What is followed by `resource:` separates resources.
    .replace(/[\s,;|+&]+(?=[A-Za-z][\w.-]*:)/g, ';')
    .replace(/\s*[,|+&]\s*/g, ',')
    .replace(/\s*;\s*|\s+/g, ';')
    .replace(/:[^;]*/g, (permissions) => permissions.toLowerCase());
  return parseScope(normalized).ok ? normalized : undefined;
}
