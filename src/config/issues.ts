import type { z } from 'zod';
import { isSecret, settingAt } from './known-settings.ts';
import { type Finding, formatValue, type RawSettings } from './raw-settings.ts';
import { formatPath, type SettingPath } from './setting-path.ts';
import { findMeantValue, suggestRemedy } from './suggest-remedy.ts';
import { describeType, getAt } from './tree.ts';
import { SCOPE_FORM } from './units.ts';

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
  remedy === undefined
    ? finding
    : { ...finding, message: `${finding.message.replace(SCOPE_FORM, '')}; ${remedy}`, showsLine: true };

const formatAlternatives = (options: readonly string[]): string =>
  options.length < 2 ? options.join('') : `${options.slice(0, -1).join(', ')} or ${options.at(-1)}`;

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
