import { inLanguage, type OwnText } from '../domain/language.ts';
import { type Scope, writeScope } from '../domain/scope.ts';
import { plain } from './html.ts';
import type { Words } from './words.ts';

type OwnWords = ReadonlyMap<string, OwnText>;

/**
 * A scope as sentences, none left out: where the operator has said what a permission means, that; what is left of a
 * resource in one sentence of ours.
 */
export function scopeInWords(scope: Scope, words: Words, own: OwnWords = new Map()): readonly string[] {
  const said = (item: string): string | undefined => {
    const text = own.get(item);
    return text && plain(inLanguage(text, words.language), 160);
  };
  return [...scope]
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
    .flatMap(([resource, permissions]) => {
      const key = resource.toLowerCase();
      const name = readable(resource);
      if (permissions.size === 0) return [capital(said(key) ?? words.mayUse(name))];
      const told = inOrder(permissions, words).map((permission) => ({
        permission,
        sentence: said(`${key}:${permission}`),
      }));
      const rest = told.filter(({ sentence }) => sentence === undefined).map(({ permission }) => permission);
      return [
        ...told.flatMap(({ sentence }) => (sentence === undefined ? [] : [capital(sentence)])),
        ...(rest.length === 0 ? [] : [capital(words.mayDo(words.and(verbsFor(rest, words)), name))]),
      ];
    });
}

/** The order of the words' own table is the natural one: see before change, change before delete. */
function inOrder(permissions: ReadonlySet<string>, words: Words): string[] {
  const known = Object.keys(words.permissions).filter((permission) => permissions.has(permission));
  const unknown = [...permissions].filter((permission) => !Object.hasOwn(words.permissions, permission));
  return [...known, ...unknown.toSorted()];
}

const verbsFor = (permissions: readonly string[], words: Words): string[] => [
  ...new Set(
    permissions.map((permission) =>
      Object.hasOwn(words.permissions, permission)
        ? (words.permissions[permission] ?? permission)
        : words.quoted(plain(permission)),
    ),
  ),
];

export const scopeInTerms = (scope: Scope): string => writeScope(scope);

const readable = (resource: string): string => plain(resource.replaceAll('_', ' '));

const capital = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);
