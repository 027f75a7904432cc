import { granted, type Outcome, refused } from './outcome.ts';

/**
 * What a token may be used for: `resource:permission,permission;resource`.
 *
 * Resources compare without case and are kept in lower case. Permissions are lower-case words and compare
 * exactly. A resource without permissions is the resource "with no particular permission": it is met by any
 * item of that resource and meets no permission.
 */
export type Scope = ReadonlyMap<string, ReadonlySet<string>>;

const RESOURCE = /[A-Za-z][A-Za-z0-9_.-]*/y;
const PERMISSION = /[a-z][a-z0-9_-]*/y;
const MAX_LENGTH = 4_096;

export interface ScopeDialect {
  /** The standard face joins items by spaces as well (RFC 6749 §3.3). */
  readonly spaces: boolean;
}

export function parseScope(text: string, dialect: ScopeDialect = { spaces: false }): Outcome<Scope> {
  const malformed = (at: number): Outcome<never> => refused({ reason: 'scope_malformed', at });
  if (text.length > MAX_LENGTH) return malformed(MAX_LENGTH);

  const separates = (char: string | undefined): boolean => char === ';' || (dialect.spaces && char === ' ');
  const scope = new Map<string, Set<string>>();
  let at = 0;
  const word = (shape: RegExp): string | undefined => {
    shape.lastIndex = at;
    const found = shape.exec(text)?.[0];
    if (found !== undefined) at += found.length;
    return found;
  };

  while (at < text.length) {
    const resource = word(RESOURCE);
    if (resource === undefined) return malformed(at);
    const name = resource.toLowerCase();
    const permissions = scope.get(name) ?? new Set<string>();
    scope.set(name, permissions);
    if (text[at] === ':') {
      do {
        at += 1;
        const permission = word(PERMISSION);
        if (permission === undefined) return malformed(at);
        permissions.add(permission);
      } while (text[at] === ',');
    }
    if (at === text.length) break;
    if (!separates(text[at])) return malformed(at);
    at += 1;
  }
  return scope.size === 0 ? refused({ reason: 'scope_missing' }) : granted(scope);
}

/** The normal form: lower-case resources in order, permissions in order. It is what tokens and upstreams see. */
export function writeScope(scope: Scope): string {
  return [...scope]
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
    .map(([resource, permissions]) =>
      permissions.size === 0 ? resource : `${resource}:${[...permissions].toSorted().join(',')}`,
    )
    .join(';');
}

/** Does `held` give everything `asked` names? */
export function covers(held: Scope, asked: Scope): boolean {
  for (const [resource, permissions] of asked) {
    const has = held.get(resource);
    if (has === undefined) return false;
    for (const permission of permissions) if (!has.has(permission)) return false;
  }
  return true;
}

/** What of `asked` goes beyond `limit`; undefined when nothing does. */
export function excessOf(asked: Scope, limit: Scope): Scope | undefined {
  const excess = new Map<string, Set<string>>();
  for (const [resource, permissions] of asked) {
    const allowed = limit.get(resource);
    if (allowed === undefined) excess.set(resource, new Set(permissions));
    else {
      const beyond = permissions.difference(allowed);
      if (beyond.size > 0) excess.set(resource, beyond);
    }
  }
  return excess.size === 0 ? undefined : excess;
}

/** What both give. A resource held by both stays, even when no permission is common. */
export function meet(a: Scope, b: Scope): Scope {
  const common = new Map<string, Set<string>>();
  for (const [resource, permissions] of a) {
    const other = b.get(resource);
    if (other !== undefined) common.set(resource, permissions.intersection(other));
  }
  return common;
}

export function union(scopes: Iterable<Scope>): Scope {
  const all = new Map<string, Set<string>>();
  for (const scope of scopes)
    for (const [resource, permissions] of scope)
      all.set(resource, (all.get(resource) ?? new Set<string>()).union(permissions));
  return all;
}
