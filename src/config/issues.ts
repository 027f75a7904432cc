import type { z } from 'zod';
import { findClosestName, formatAlternatives } from '../lib/closest-name.ts';
import { isSecret, type KnownSetting, listAllNames, settingAt, type ValueType } from './known-settings.ts';
import { type Finding, formatValue, type RawSettings } from './raw-settings.ts';
import { describeType, formatPath, getAt, isObject, type SettingPath, type Tree } from './setting-path.ts';

type Issue = z.core.$ZodIssue;

const TYPE_NAMES: Readonly<Record<string, string>> = {
  string: 'a string',
  number: 'a number',
  int: 'an integer',
  boolean: 'true or false',
  array: 'a list',
  object: 'a group of settings',
  record: 'a group of settings',
};

/** Issues of the schema as messages for the operator. */
export function convertIssues(raw: RawSettings, issues: readonly Issue[]): readonly Finding[] {
  return issues.flatMap((issue) => convertIssue(raw, issue, []));
}

function convertIssue(raw: RawSettings, issue: Issue, parentPath: SettingPath): readonly Finding[] {
  const path = [...parentPath, ...issue.path.filter((segment) => typeof segment !== 'symbol')];
  const value = getAt(raw.tree, path);
  const report = (message: string): readonly Finding[] => [{ path, message }];
  const actual = `, and is ${formatValue(path, value) ?? describeType(value)}`;
  const remedy = findRemedy(raw, path);
  const reportWithRemedy = (message: string): readonly Finding[] => [addRemedy({ path, message }, remedy)];

  if (value === null) return report('is empty; set a value or remove the line');
  switch (issue.code) {
    case 'invalid_type': {
      const expected = settingAt(path)?.expected ?? TYPE_NAMES[issue.expected] ?? issue.expected;
      if (value === undefined) return report(`is missing; it must be ${expected}`);
      return reportWithRemedy(`must be ${expected}${actual}`);
    }
    case 'too_small':
      if (issue.origin === 'string')
        return report(
          Number(issue.minimum) === 1 ? 'must not be empty' : `must have at least ${issue.minimum} characters`,
        );
      if (issue.origin === 'array') return report('must list at least one');
      return report(`must be at least ${issue.minimum}${actual}`);
    case 'too_big':
      if (issue.origin === 'string') return report(`must have at most ${issue.maximum} characters`);
      if (issue.origin === 'array') return report(`must list at most ${issue.maximum}`);
      return report(`must be at most ${issue.maximum}${actual}`);
    case 'invalid_value': {
      const allowed = issue.values.map(String);
      const closest = typeof value === 'string' ? findMeantValue(value, allowed) : undefined;
      const hint = closest === undefined || allowed.length < 2 ? '' : `; did you mean ${closest}?`;
      if (value === undefined) return report(`is missing; it must be ${formatAlternatives(allowed)}`);
      // `public: no`: only true is possible.
      if (remedy === 'write false' && !allowed.includes('false'))
        return [addRemedy({ path, message: `must be ${formatAlternatives(allowed)}${actual}` }, 'remove the line')];
      return reportWithRemedy(`must be ${formatAlternatives(allowed)}${actual}${hint}`);
    }
    case 'invalid_format':
      return reportWithRemedy(
        issue.message.startsWith('must') ? `${issue.message}${actual}` : `has an invalid format${actual}`,
      );
    case 'unrecognized_keys':
      return issue.keys.map((key) => ({
        path: [...path, key],
        message: 'is not a known setting here; remove it',
      }));
    case 'invalid_key':
      return report(
        `has an invalid name; ${describeNameRule(issue.issues) ?? 'use letters, digits, dot, dash or underscore'}`,
      );
    case 'invalid_union':
      return convertUnionIssue(raw, issue, path, actual);
    case 'not_multiple_of':
    case 'invalid_element':
      return report(`is not allowed${actual}`);
    case 'custom':
      return reportWithRemedy(issue.message.startsWith('must') ? `${issue.message}${actual}` : issue.message);
  }
}

/** Not for secrets and values from variables: a remedy may repeat part of the value. */
function findRemedy(raw: RawSettings, path: SettingPath): string | undefined {
  const setting = settingAt(path);
  return setting === undefined || isSecret(path) || raw.templates.has(formatPath(path))
    ? undefined
    : suggestRemedy(setting, getAt(raw.tree, path));
}

const addRemedy = (finding: Finding, remedy: string | undefined): Finding =>
  remedy === undefined ? finding : { ...finding, message: `${finding.message}; ${remedy}`, showsLine: true };

/** Reports the variant that was most likely meant: the one whose type matches. */
function convertUnionIssue(
  raw: RawSettings,
  issue: Extract<Issue, { code: 'invalid_union' }>,
  path: SettingPath,
  actual: string,
): readonly Finding[] {
  const branches: readonly (readonly Issue[])[] = issue.errors;
  const isWrongType = ([first]: readonly Issue[]): boolean => first?.code === 'invalid_type' && first.path.length === 0;
  const candidates = branches.filter((branch) => !isWrongType(branch));
  const best = candidates.toSorted((a, b) => rank(a) - rank(b))[0];
  const expectations = branches.flatMap((branch) => branch.flatMap(listExpectations));
  const onlyValues = candidates.every(([first]) => first?.code === 'invalid_value' && first.path.length === 0);
  const expected = settingAt(path)?.expected;
  const report = (text: string): readonly Finding[] => [
    addRemedy({ path, message: `must be ${text}${actual}` }, findRemedy(raw, path)),
  ];
  if (best === undefined && expected !== undefined) return report(expected);
  if (best === undefined || onlyValues) return report(formatAlternatives([...new Set(expectations)]));
  return best.flatMap((inner) => convertIssue(raw, inner, path));
}

/** An invalid format is more specific than a value that is not in a list. */
const rank = ([first]: readonly Issue[]): number => (first?.code === 'invalid_value' ? 1 : 0);

const listExpectations = (issue: Issue): readonly string[] => {
  if (issue.path.length > 0) return [];
  if (issue.code === 'invalid_value') return issue.values.map(String);
  if (issue.code === 'invalid_type') return [TYPE_NAMES[issue.expected] ?? issue.expected];
  return [];
};

/** The rule for names in this record, if its schema has a message for it. */
function describeNameRule(issues: readonly { readonly message: string }[]): string | undefined {
  const rule = issues.find(({ message }) => message.startsWith('must'))?.message;
  return rule && `it ${rule}`;
}

const LIST_OF_GROUPS = 'write a list of groups: each entry begins with `- `, and its settings are lines `name: value`';

/** Longer values are not repeated. */
const MAX_QUOTED = 120;

/** What to write instead of a value of the wrong type or form, if that is evident. */
function suggestRemedy({ titles, types, items }: KnownSetting, value: Tree | undefined): string | undefined {
  /** The only type of the setting. */
  const isOnly = (type: ValueType): boolean => types.size === 1 && types.has(type);
  if (value === undefined || value === null) return undefined;
  const text = typeof value === 'object' ? '' : String(value);
  if (titles.has('scope'))
    return Array.isArray(value)
      ? 'write one string, and separate resources with ; as in files:read;reports:read'
      : undefined;
  if (titles.has('duration')) return /^\d{1,9}$/.test(text) ? `add the unit: write ${text}s for seconds` : undefined;
  if (Array.isArray(value)) {
    if (isOnly('object'))
      return 'remove the dashes: each of its settings is a line `name: value`, indented below its name';
    return isOnly('string') ? 'write a single value; if the value itself begins with [, put it in quotes' : undefined;
  }
  if (isObject(value)) {
    if (types.has('array') && !types.has('object')) return 'begin each entry with a dash and a space: `- `';
    return isOnly('string') ? 'write a single value; if the value itself begins with {, put it in quotes' : undefined;
  }
  if (isOnly('string')) return typeof value === 'string' ? undefined : `put it in quotes: "${text}"`;
  if (isOnly('number')) return typeof value === 'string' && /^\d+$/.test(text) ? 'write it without quotes' : undefined;
  if (isOnly('array')) return items?.types.has('object') ? LIST_OF_GROUPS : suggestList(items?.values ?? [], text);
  if (isOnly('boolean') && typeof value !== 'boolean') {
    if (/^(?:yes|on|y|true|enabled?|1)$/i.test(text)) return 'write true';
    return /^(?:no|off|n|false|disabled?|0)$/i.test(text) ? 'write false' : undefined;
  }
  if (!isOnly('object') || typeof value !== 'string') return undefined;
  const name = /^([A-Za-z][\w-]*):\S/.exec(text)?.[1];
  return name !== undefined && listAllNames().has(name)
    ? `there is no space after the colon of \`${name}\`; write \`${name}: \` and then the value`
    : 'write its settings in the lines below, indented, each as `name: value`';
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
function findMeantValue(text: string, allowed: readonly string[]): string | undefined {
  const synonym = GRANT_TYPE_NAMES.find(([name, value]) => allowed.includes(value) && name.test(text));
  return findClosestName(text, allowed) ?? synonym?.[1];
}

function suggestList(allowed: readonly string[], text: string): string {
  const words = text.length > MAX_QUOTED ? ['a', 'b'] : splitValues(text);
  if (allowed.length === 0) return `write a list: [${words.join(', ')}]`;
  const values = words.map((word) => findMeantValue(word, allowed));
  return values.includes(undefined)
    ? `write a list with some of these: ${allowed.join(', ')}`
    : `write a list: [${values.join(', ')}]`;
}

const splitValues = (text: string): string[] =>
  text
    .split(/[\s,;|]+/)
    .filter((word) => word !== '')
    .map((word) => (/^[A-Za-z0-9/][\w./-]*$/.test(word) ? word : JSON.stringify(word)));
