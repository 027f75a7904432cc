import fc from 'fast-check';
import { expect, test } from 'vitest';
import { matchesSubject, parseSubjectPattern } from '../../src/domain/subject-pattern.ts';

const matches = (pattern: string, subject: string): boolean => {
  const parsed = parseSubjectPattern(pattern);
  if (!parsed.ok) throw new Error(parsed.problem);
  return matchesSubject(parsed.pattern, subject);
};

test('a pattern without * matches exactly, case included', () => {
  expect(matches('system:serviceaccount:shop:builder', 'system:serviceaccount:shop:builder')).toBe(true);
  for (const subject of [
    'system:serviceaccount:shop:Builder',
    'system:serviceaccount:shop:builder2',
    ' system:serviceaccount:shop:builder',
    'system:serviceaccount:shop:builder\n',
    'system:serviceaccount:shop',
    'system:serviceaccount:shop:builder:',
    'system/serviceaccount:shop:builder',
    '',
  ])
    expect(matches('system:serviceaccount:shop:builder', subject), JSON.stringify(subject)).toBe(false);
});

test('* matches at least one character and never crosses : or /', () => {
  const pattern = 'system:serviceaccount:shop:*';
  expect(matches(pattern, 'system:serviceaccount:shop:builder')).toBe(true);
  for (const subject of [
    'system:serviceaccount:shop:',
    'system:serviceaccount:shop',
    'system:serviceaccount:shop:a:b',
    'system:serviceaccount:shop:a/b',
    'system:serviceaccount:shop-evil:builder',
    'system:serviceaccount:other:shop:builder',
    'x:system:serviceaccount:shop:builder',
  ])
    expect(matches(pattern, subject), subject).toBe(false);
  expect(matches('system:serviceaccount:*:deployer', 'system:serviceaccount:a:b:deployer')).toBe(false);
  expect(matches('repo:octo-org/*:ref:refs/heads/main', 'repo:octo-org/shop:ref:refs/heads/main')).toBe(true);
  expect(matches('repo:octo-org/*:ref:refs/heads/main', 'repo:octo-org/shop:pull_request:ref:refs/heads/main')).toBe(
    false,
  );
  expect(matches('repo:octo-org/*:ref:refs/heads/main', 'repo:octo-org-evil/shop:ref:refs/heads/main')).toBe(false);
});

test('* has a prefix and a suffix, which do not overlap', () => {
  expect(matches('ci-*-prod', 'ci-shop-prod')).toBe(true);
  expect(matches('ci-*-prod', 'ci--prod')).toBe(false);
  expect(matches('ab*ba', 'aba')).toBe(false);
  expect(matches('ab*ba', 'abba')).toBe(false);
  expect(matches('ab*ba', 'abxba')).toBe(true);
});

test('** at the end matches any rest, but not nothing', () => {
  expect(matches('repo:octo-org/shop:**', 'repo:octo-org/shop:ref:refs/heads/feature/x')).toBe(true);
  expect(matches('repo:octo-org/shop:**', 'repo:octo-org/shop:pull_request')).toBe(true);
  expect(matches('repo:octo-org/shop:**', 'repo:octo-org/shop:')).toBe(false);
  expect(matches('repo:octo-org/shop:**', 'repo:octo-org/shop')).toBe(false);
  expect(matches('repo:octo-org/shop:**', 'repo:octo-org/shop-evil:ref:x')).toBe(false);
  expect(matches('repo:octo-org/**', 'repo:octo-org:x')).toBe(false);
  expect(matches('**', 'f3c1')).toBe(true);
  expect(matches('**', 'a:b/c')).toBe(true);
  expect(matches('**', '')).toBe(false);
});

test('ambiguous patterns are refused', () => {
  for (const pattern of ['', 'a*b*c', '**a', 'a**', 'a:**:b', '***', 'a:***'])
    expect(parseSubjectPattern(pattern).ok, pattern).toBe(false);
});

test('a text matches itself as a pattern, and other characters have no special meaning', () => {
  fc.assert(
    fc.property(fc.string({ minLength: 1, unit: 'grapheme' }), fc.string(), (text, other) => {
      if (text.includes('*')) return;
      expect(matches(text, text)).toBe(true);
      if (other !== text) expect(matches(text, other)).toBe(false);
    }),
  );
  expect(matches('a.c', 'abc')).toBe(false);
  expect(matches('a?c', 'abc')).toBe(false);
});
