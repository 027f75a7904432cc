import type { z } from 'zod';
import { type Draft, type Finding, shown } from './draft.ts';
import { settingAt } from './known-settings.ts';
import { nearest } from './nearest.ts';
import type { SettingPath } from './setting-path.ts';
import { at, kindOf } from './tree.ts';

type Issue = z.core.$ZodIssue;

const EXPECTED: Readonly<Record<string, string>> = {
  string: 'text',
  number: 'a number',
  int: 'a whole number',
  boolean: 'true or false',
  array: 'a list',
  object: 'a group of settings',
  record: 'a group of settings',
};

/** What the schema found, as sentences for the person who wrote the file. */
export function findingsOf(draft: Draft, issues: readonly Issue[]): readonly Finding[] {
  return issues.flatMap((issue) => findingOf(draft, issue, []));
}

function findingOf(draft: Draft, issue: Issue, above: SettingPath): readonly Finding[] {
  const path = [...above, ...issue.path.filter((segment) => typeof segment !== 'symbol')];
  const value = at(draft.tree, path);
  const say = (message: string): readonly Finding[] => [{ path, message }];
  const but = (() => {
    const text = shown(path, value);
    return text === undefined ? `, and is ${kindOf(value)}` : `, and is ${text}`;
  })();

  if (value === null) return say('is empty; give it a value or take the line away');
  switch (issue.code) {
    case 'invalid_type': {
      const wanted = settingAt(path)?.form ?? EXPECTED[issue.expected] ?? issue.expected;
      return say(value === undefined ? `is missing; it must be ${wanted}` : `must be ${wanted}${but}`);
    }
    case 'too_small':
      if (issue.origin === 'string')
        return say(
          Number(issue.minimum) === 1
            ? 'must not be empty'
            : `must have at least ${issue.minimum} characters`,
        );
      if (issue.origin === 'array') return say('must list at least one');
      return say(`must be at least ${issue.minimum}${but}`);
    case 'too_big':
      if (issue.origin === 'string') return say(`must have at most ${issue.maximum} characters`);
      if (issue.origin === 'array') return say(`must list at most ${issue.maximum}`);
      return say(`must be at most ${issue.maximum}${but}`);
    case 'invalid_value': {
      const allowed = issue.values.map(String);
      const near = typeof value === 'string' ? nearest(value, allowed) : undefined;
      const hint = near === undefined || allowed.length < 2 ? '' : `; did you mean ${near}?`;
      if (value === undefined) return say(`is missing; it must be ${oneOf(allowed)}`);
      return say(`must be ${oneOf(allowed)}${but}${hint}`);
    }
    case 'invalid_format':
      return say(
        issue.message.startsWith('must') ? `${issue.message}${but}` : `has a form that is not allowed${but}`,
      );
    case 'unrecognized_keys':
      return issue.keys.map((key) => ({
        path: [...path, key],
        message: 'is not a known setting here; take it out',
      }));
    case 'invalid_key':
      return say(
        `has a name that is not allowed; ${nameRule(issue.issues) ?? 'use letters, digits, dot, dash or underscore'}`,
      );
    case 'invalid_union':
      return unionFinding(draft, issue, path, but);
    case 'not_multiple_of':
    case 'invalid_element':
      return say(`is not allowed${but}`);
    case 'custom':
      return say(issue.message.startsWith('must') ? `${issue.message}${but}` : issue.message);
  }
}

const oneOf = (words: readonly string[]): string =>
  words.length < 2 ? words.join('') : `${words.slice(0, -1).join(', ')} or ${words.at(-1)}`;

/** Of several forms, speak about the one that was most likely meant: whose kind is right and whose content is not. */
function unionFinding(
  draft: Draft,
  issue: Extract<Issue, { code: 'invalid_union' }>,
  path: SettingPath,
  but: string,
): readonly Finding[] {
  const branches: readonly (readonly Issue[])[] = issue.errors;
  const isWrongKind = ([first]: readonly Issue[]): boolean =>
    first?.code === 'invalid_type' && first.path.length === 0;
  const meant = branches.filter((branch) => !isWrongKind(branch));
  const best = meant.toSorted((a, b) => rank(a) - rank(b))[0];
  const words = branches.flatMap((branch) => branch.flatMap(expectation));
  const onlyValues = meant.every(([first]) => first?.code === 'invalid_value');
  const form = settingAt(path)?.form;
  if (best === undefined && form !== undefined) return [{ path, message: `must be ${form}${but}` }];
  if (best === undefined || onlyValues)
    return [{ path, message: `must be ${oneOf([...new Set(words)])}${but}` }];
  return best.flatMap((inner) => findingOf(draft, inner, path));
}

/** A text that is none of a few words says less than one that has a wrong form. */
const rank = ([first]: readonly Issue[]): number => (first?.code === 'invalid_value' ? 1 : 0);

const expectation = (issue: Issue): readonly string[] => {
  if (issue.path.length > 0) return [];
  if (issue.code === 'invalid_value') return issue.values.map(String);
  if (issue.code === 'invalid_type') return [EXPECTED[issue.expected] ?? issue.expected];
  return [];
};

/** What a name of one's own must be like, where its schema says it. */
function nameRule(issues: readonly { readonly message: string }[]): string | undefined {
  const words = issues.find(({ message }) => message.startsWith('must'))?.message;
  return words && `it ${words}`;
}
