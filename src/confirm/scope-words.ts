import { type Scope, writeScope } from '../domain/scope.ts';
import { plain } from './html.ts';
import type { Words } from './words.ts';

/** A scope as sentences, one for each resource and none left out. */
export function scopeInWords(scope: Scope, words: Words): readonly string[] {
  return [...scope]
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
    .map(([resource, permissions]) => {
      const name = readable(resource);
      if (permissions.size === 0) return capital(words.mayUse(name));
      return capital(words.mayDo(words.and(verbsFor(permissions, words)), name));
    });
}

/** The order of the words' own table is the natural one: see before change, change before delete. */
function verbsFor(permissions: ReadonlySet<string>, words: Words): string[] {
  const known = Object.keys(words.permissions).filter((permission) => permissions.has(permission));
  const unknown = [...permissions]
    .filter((permission) => !Object.hasOwn(words.permissions, permission))
    .toSorted();
  return [
    ...new Set(known.map((permission) => words.permissions[permission] ?? permission)),
    ...unknown.map((permission) => words.quoted(plain(permission))),
  ];
}

export const scopeInTerms = (scope: Scope): string => writeScope(scope);

const readable = (resource: string): string => plain(resource.replaceAll('_', ' '));

const capital = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);
