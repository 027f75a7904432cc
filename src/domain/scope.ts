import { type Outcome, ok, refused } from './refusal.ts';

/**
 * `resource:permission,permission;resource`. Resources are case-insensitive and stored in lower case; permissions are lower
 * case. A resource without permissions is covered by any item of that resource, and covers no permission.
 */
export type Scope = ReadonlyMap<string, ReadonlySet<string>>;

const RESOURCE = /[A-Za-z][A-Za-z0-9_.-]*/y;
const PERMISSION = /[a-z][a-z0-9_-]*/y;
const MAX_LENGTH = 4_096;

export interface ScopeSyntax {
  /** The OAuth endpoints also allow spaces between items (RFC 6749 §3.3). */
  readonly allowSpaces: boolean;
}

export function parseScope(text: string, syntax: ScopeSyntax = { allowSpaces: false }): Outcome<Scope> {
  const malformed = (at: number): Outcome<never> => refused({ reason: 'scope_malformed', at });
  if (text.length > MAX_LENGTH) return malformed(MAX_LENGTH);

  const isSeparator = (char: string | undefined): boolean => char === ';' || (syntax.allowSpaces && char === ' ');
  const scope = new Map<string, Set<string>>();
  let at = 0;
  const readToken = (pattern: RegExp): string | undefined => {
    pattern.lastIndex = at;
    const found = pattern.exec(text)?.[0];
    if (found !== undefined) at += found.length;
    return found;
  };

  while (at < text.length) {
    const resource = readToken(RESOURCE);
    if (resource === undefined) return malformed(at);
    const name = resource.toLowerCase();
    const permissions = scope.get(name) ?? new Set<string>();
    scope.set(name, permissions);
    if (text[at] === ':') {
      do {
        at += 1;
        const permission = readToken(PERMISSION);
        if (permission === undefined) return malformed(at);
        permissions.add(permission);
      } while (text[at] === ',');
    }
    if (at === text.length) break;
    if (!isSeparator(text[at])) return malformed(at);
    at += 1;
  }
  return scope.size === 0 ? refused({ reason: 'scope_missing' }) : ok(scope);
}

/** The normal form, sorted, for upstreams. */
export function formatScope(scope: Scope): string {
  return [...scope]
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
    .map(([resource, permissions]) =>
      permissions.size === 0 ? resource : `${resource}:${[...permissions].toSorted().join(',')}`,
    )
    .join(';');
}

/**
 * RFC 6749 §3.3: one scope token per permission, with spaces between them, for JWTs (RFC 9068 §2.2.3), OAuth responses and challenges. A list
 * that `parseScope` would refuse as too long is in the normal form.
 */
export function formatOAuthScope(scope: Scope): string {
  const list = listScopeTokens(scope).join(' ');
  return list.length <= MAX_LENGTH ? list : formatScope(scope);
}

/** The same for the scope of a grant, which is as it was requested. */
export function toOAuthScope(text: string): string {
  const scope = parseScope(text, { allowSpaces: true });
  return scope.ok ? formatOAuthScope(scope.value) : text;
}

/** RFC 6749 §3.3: one scope token per permission, sorted. */
export const listScopeTokens = (scope: Scope): readonly string[] =>
  [...scope]
    .flatMap(([resource, permissions]) =>
      permissions.size === 0 ? [resource] : [...permissions].map((permission) => `${resource}:${permission}`),
    )
    .toSorted();

export function covers(grantedScope: Scope, requested: Scope): boolean {
  for (const [resource, permissions] of requested) {
    const grantedPermissions = grantedScope.get(resource);
    if (grantedPermissions === undefined || !permissions.isSubsetOf(grantedPermissions)) return false;
  }
  return true;
}

export function unionScopes(scopes: readonly Scope[]): Scope {
  const [first] = scopes;
  if (first !== undefined && scopes.length === 1) return first;
  const union = new Map<string, ReadonlySet<string>>();
  for (const scope of scopes)
    for (const [resource, permissions] of scope)
      union.set(resource, union.get(resource)?.union(permissions) ?? permissions);
  return union;
}

/** The part of `requested` beyond `limit`; undefined if there is none. */
export function findExcess(requested: Scope, limit: Scope): Scope | undefined {
  const excess = new Map<string, Set<string>>();
  for (const [resource, permissions] of requested) {
    const allowed = limit.get(resource);
    if (allowed === undefined) excess.set(resource, new Set(permissions));
    else {
      const beyond = permissions.difference(allowed);
      if (beyond.size > 0) excess.set(resource, beyond);
    }
  }
  return excess.size === 0 ? undefined : excess;
}

/** A common resource is kept even without common permissions. */
export function intersectScopes(a: Scope, b: Scope): Scope {
  if (covers(b, a)) return a;
  const common = new Map<string, Set<string>>();
  for (const [resource, permissions] of a) {
    const other = b.get(resource);
    if (other !== undefined) common.set(resource, permissions.intersection(other));
  }
  return common;
}

/**
 * The part of `requested` within all limits. A resource of which no requested permission is left is dropped: without permissions,
 * it would be something that was not requested.
 */
export function narrowScope(requested: Scope, limits: readonly Scope[]): Scope {
  let narrowed = requested;
  for (const limit of limits) narrowed = intersectScopes(narrowed, limit);
  return new Map(
    [...narrowed].filter(([resource, permissions]) => permissions.size > 0 || requested.get(resource)?.size === 0),
  );
}
