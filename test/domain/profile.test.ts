import { expect, test } from 'vitest';
import { createProfile, selectClaims, type User, updateProfile } from '../../src/domain/user.ts';

const user = (fields: Partial<User> = {}): User => ({
  identity: 'local:00ff00ff',
  displayName: 'Alice',
  directory: 'staff',
  groups: new Set(),
  disabled: false,
  ...fields,
});

test('a profile has only usable parts, and a list of groups as a whole or not at all', () => {
  expect(createProfile({ name: 'alice', email: '', groups: [] })).toEqual({ name: 'alice' });
  expect(createProfile({ name: 'a\u001b[2J' })).toBeUndefined();
  expect(createProfile({ name: 'a'.repeat(257), email: '\ud800' })).toBeUndefined();
  expect(createProfile({ groups: ['a', 'b\n'] })).toBeUndefined();
  const groups = Array.from({ length: 300 }, (_, index) => `group-${index}`);
  expect(createProfile({ name: 'alice', groups })).toEqual({ name: 'alice' });
});

test('a token carries only the claims of the settings', () => {
  const profile = { name: 'alice', email: 'a@example.test', groups: ['x'] };
  expect(selectClaims(profile, new Set(['email']))).toEqual({ email: 'a@example.test' });
  expect(selectClaims(profile, new Set())).toBeUndefined();
});

test('a user without a name in the directory keeps name and address, but not groups', () => {
  const known = { name: 'carol', email: 'c@example.test', groups: ['partners'] };
  expect(updateProfile(known, user())).toEqual({ name: 'carol', email: 'c@example.test' });
  expect(updateProfile(known, user({ groups: new Set(['b', 'a']) }))).toEqual({
    name: 'carol',
    email: 'c@example.test',
    groups: ['a', 'b'],
  });
  expect(updateProfile(known, user({ userName: 'alice' }))).toEqual({ name: 'alice' });
  expect(updateProfile(known, undefined)).toEqual(known);
});
