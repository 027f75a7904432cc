import { describe, expect, test } from 'vitest';
import {
  type AccessEntry,
  checkGrantAllowed,
  type GrantType,
  getAllowedScope,
  type Integration,
} from '../../src/domain/integration.ts';
import { formatScope, parseScope, type Scope } from '../../src/domain/scope.ts';
import type { User } from '../../src/domain/user.ts';

const scope = (text: string): Scope => {
  const parsed = parseScope(text);
  if (!parsed.ok) throw new Error(text);
  return parsed.value;
};
const entry = (changes: Partial<AccessEntry>): AccessEntry => ({
  groups: new Set(),
  identities: new Set(),
  ...changes,
});
const integration = (...access: AccessEntry[]): Integration => ({
  clientId: 'runner',
  name: 'Runner',
  scope: scope('reports:read,write;files:read'),
  grants: new Set(['certificate', 'device'] as const),
  access,
  accessLifetime: 3_600,
  grantLifetime: 86_400,
  bindToCertificate: false,
});
const alice: User = {
  identity: 'local:{a}',
  displayName: 'Alice',
  directory: 'staff',
  groups: new Set(['operators']),
  disabled: false,
};
const grantedScope = (of: Integration, grantType: GrantType): string | undefined => {
  const access = getAllowedScope(of, alice, grantType);
  return access && formatScope(access);
};

describe('wire 7: the scopes of access entries are combined', () => {
  const entireScope = 'files:read;reports:read,write';
  test.each<[string, AccessEntry[], string | undefined]>([
    ['without entries there is no access', [], undefined],
    ['by group', [entry({ groups: new Set(['operators']) })], entireScope],
    ['by identity', [entry({ identities: new Set(['local:{a}']) })], entireScope],
    ['by directory', [entry({ directory: 'staff' })], entireScope],
    ['another group', [entry({ groups: new Set(['others']) })], undefined],
    ['another directory', [entry({ directory: 'workloads' })], undefined],
    [
      'an entry limited to part of the scope',
      [entry({ directory: 'staff', scope: scope('files:read') })],
      'files:read',
    ],
    [
      'scopes of two entries are combined',
      [
        entry({ directory: 'staff', scope: scope('files:read') }),
        entry({ groups: new Set(['operators']), scope: scope('reports:read') }),
      ],
      'files:read;reports:read',
    ],
    [
      'an entry for the other grant type only',
      [entry({ directory: 'staff', grants: new Set(['device'] as const) })],
      undefined,
    ],
  ])('%s', (_, access, expected) => {
    expect(grantedScope(integration(...access), 'certificate')).toBe(expected);
  });
});

describe('the scope a user may be granted', () => {
  const partly = integration(entry({ directory: 'staff', scope: scope('reports:read') }));
  test.each([
    [partly, 'reports:read', 'granted'],
    [partly, 'reports', 'granted'],
    [partly, 'reports:write', 'scope_exceeds_access'],
    [partly, 'reports:delete', 'scope_exceeds_integration'],
    [integration(), 'reports:read', 'identity_not_allowed'],
  ])('%#: %s', (of, request, expected) => {
    const outcome = checkGrantAllowed(of, alice, 'certificate', scope(request));
    expect(outcome.ok ? 'granted' : outcome.refusal.reason).toBe(expected);
  });
});
