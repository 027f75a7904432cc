import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  covers,
  findExcess,
  formatOAuthScope,
  formatScope,
  intersectScopes,
  narrowScope,
  parseScope,
  type Scope,
  unionScopes,
} from '../../src/domain/scope.ts';

const scope = (text: string): Scope => {
  const parsed = parseScope(text);
  if (!parsed.ok) throw new Error(`${text}: ${parsed.refusal.reason}`);
  return parsed.value;
};

describe('seed 2.2: the scope string', () => {
  test.each([
    ['a resource and its permissions', 'reports:delete,discover,manage', 'reports:delete,discover,manage'],
    ['resource names are case-insensitive', 'Reports:approve,admin', 'reports:admin,approve'],
    ['several resources are joined by a semicolon', 'reports:read;files:read', 'files:read;reports:read'],
    ['a trailing semicolon is allowed', 'reports:read;', 'reports:read'],
    ['a bare resource', 'files', 'files'],
    ['items for one resource are merged', 'files:read;Files:write', 'files:read,write'],
  ])('%s', (_, text, normal) => {
    expect(formatScope(scope(text))).toBe(normal);
  });

  test.each([
    ['', 'scope_missing'],
    [';', 'scope_malformed'],
    [' reports:read', 'scope_malformed'],
    ['files: read', 'scope_malformed'],
    ['files:read,', 'scope_malformed'],
    ['files:Read', 'scope_malformed'],
    ['files:', 'scope_malformed'],
    [':read', 'scope_malformed'],
    ['*:*', 'scope_malformed'],
    ['files:read files:write', 'scope_malformed'],
    ['files:read;;files:write', 'scope_malformed'],
    ['files:read:write', 'scope_malformed'],
    ['files[tenant=1]:read', 'scope_malformed'],
    ['fi\u0000les:read', 'scope_malformed'],
    ['x'.repeat(5_000), 'scope_malformed'],
  ])('%j is rejected as %s', (text, reason) => {
    const parsed = parseScope(text);
    expect(parsed.ok ? 'granted' : parsed.refusal.reason).toBe(reason);
  });

  test('the OAuth endpoints also accept spaces between items', () => {
    const parsed = parseScope('reports:read files:read', { allowSpaces: true });
    expect(parsed.ok && formatScope(parsed.value)).toBe('files:read;reports:read');
  });

  test('for OAuth, it is a list with one permission per item, which means the same', () => {
    const several = scope('reports:write,read;files;Orders:read');
    const list = formatOAuthScope(several);
    expect(list).toBe('files orders:read reports:read reports:write');
    expect(parseScope(list, { allowSpaces: true })).toMatchObject({ value: several });
  });

  test('a scope whose list would be too long is in the normal form', () => {
    const long = scope(`${'r'.repeat(1_000)}:${Array.from({ length: 20 }, (_, index) => `p${index}`).join(',')}`);
    expect(formatOAuthScope(long)).toBe(formatScope(long));
  });
});

describe('T16 wire 7: coverage of scopes', () => {
  test.each([
    ['files:read', 'files:read', true],
    ['Files:read', 'files:read', true],
    ['files:read', 'FILES:read', true],
    ['files:readwrite', 'files:read', false],
    ['files:read', 'files:readwrite', false],
    ['files', 'files:read', false],
    ['files:read', 'files', true],
    ['files', 'files', true],
    ['file:read', 'files:read', false],
    ['files:read,write', 'files:write', true],
    ['files:read', 'files:read,write', false],
    ['files:read', 'files:read;reports:read', false],
  ])('%s granted, %s required: %s', (held, request, passes) => {
    expect(covers(scope(held), scope(request))).toBe(passes);
  });

  test('the excess contains exactly what exceeds the limit', () => {
    const excess = findExcess(scope('reports:read,delete;admin:manage'), scope('reports:read,write'));
    expect(excess && formatScope(excess)).toBe('admin:manage;reports:delete');
    expect(findExcess(scope('reports'), scope('reports:read'))).toBeUndefined();
  });
});

const word = fc.constantFrom('files', 'reports', 'admin', 'Files', 'x');
const permission = fc.constantFrom('read', 'write', 'delete', 'readwrite');
const anyScope = fc
  .array(fc.tuple(word, fc.array(permission, { maxLength: 3 })), { minLength: 1, maxLength: 4 })
  .map((items) => scope(items.map(([name, list]) => (list.length > 0 ? `${name}:${list.join(',')}` : name)).join(';')));

test('the normal form parses to the same scope', () => {
  fc.assert(fc.property(anyScope, (value) => formatScope(scope(formatScope(value))) === formatScope(value)));
});

test('both scopes cover their intersection, and their union covers both', () => {
  fc.assert(
    fc.property(anyScope, anyScope, (a, b) => {
      const common = intersectScopes(a, b);
      return covers(a, common) && covers(b, common) && covers(unionScopes([a, b]), a) && covers(unionScopes([a, b]), b);
    }),
  );
});

test('a narrowed scope is within the requested one and all limits, without resources that lost their permissions', () => {
  fc.assert(
    fc.property(anyScope, anyScope, anyScope, (requested, one, other) => {
      const narrowed = narrowScope(requested, [one, other]);
      return (
        [requested, one, other].every((limit) => covers(limit, narrowed)) &&
        [...narrowed].every(([name, { size }]) => size > 0 || requested.get(name)?.size === 0)
      );
    }),
  );
});

test('an excess exists exactly when the limit does not cover the requested scope', () => {
  fc.assert(fc.property(anyScope, anyScope, (a, b) => (findExcess(a, b) === undefined) === covers(b, a)));
});
