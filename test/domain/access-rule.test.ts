import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { type AccessRule, parsePattern } from '../../src/domain/access-rule.ts';
import { compileRules, type MatchInput, normalizeHost } from '../../src/domain/rule-matcher.ts';

function rule(path: string, options: Partial<AccessRule> & { readonly on?: string } = {}): AccessRule {
  const parsed = parsePattern(path);
  if (!parsed.ok) throw new Error(parsed.problem);
  const { on, ...rest } = options;
  return {
    name: path,
    pattern: parsed.segments,
    requirement: { kind: 'any-token' },
    upstream: 'default',
    encodedSlash: false,
    forwardAuthorization: false,
    ...rest,
    ...(on !== undefined && { methods: new Set(on.split(' ')) }),
  };
}

const createInput = (path: string, options: Partial<MatchInput> = {}): MatchInput => ({
  method: 'GET',
  host: 'gate.test',
  target: { segments: path.slice(1).split('/').map(decodeURIComponent), encodedSlash: path.includes('%2F') },
  ...options,
});

describe('patterns', () => {
  test('an ambiguous pattern is rejected', () => {
    for (const text of ['a', '/a//b', '/a?b', '/a%20', '/a/../b', '/**/a', '/a*', '/a;b', ''])
      expect([text, parsePattern(text).ok]).toEqual([text, false]);
  });
});

describe('matching', () => {
  const findRule = (rules: AccessRule[], input: MatchInput): string | undefined =>
    compileRules(rules).match(input)?.name;

  test('the first matching rule wins, whether it is literal or has wildcards', () => {
    expect(findRule([rule('/**'), rule('/a')], createInput('/a'))).toBe('/**');
    expect(findRule([rule('/a'), rule('/**')], createInput('/a'))).toBe('/a');
    expect(findRule([rule('/*/b'), rule('/a/b')], createInput('/a/b'))).toBe('/*/b');
    expect(findRule([rule('/a/b'), rule('/*/b')], createInput('/a/b'))).toBe('/a/b');
    expect(findRule([rule('/a/**'), rule('/*/b')], createInput('/x/b'))).toBe('/*/b');
  });

  test('/a/** matches /a and everything under it, but no sibling', () => {
    const rules = [rule('/a/**')];
    for (const path of ['/a', '/a/', '/a/b', '/a/b/c'])
      expect([path, findRule(rules, createInput(path))]).toEqual([path, '/a/**']);
    for (const path of ['/', '/ab', '/b/a', '/A', '/a.', '/a%20', '/a;x'])
      expect([path, findRule(rules, createInput(path))]).toEqual([path, undefined]);
  });

  test('a star matches exactly one non-empty segment', () => {
    const rules = [rule('/a/*')];
    expect(findRule(rules, createInput('/a/b'))).toBe('/a/*');
    for (const path of ['/a', '/a/', '/a/b/c'])
      expect([path, findRule(rules, createInput(path))]).toEqual([path, undefined]);
  });

  test('a percent-encoded reserved character matches the literal one in a rule', () => {
    expect(findRule([rule('/v1:run'), rule('/**')], createInput('/v1%3Arun'))).toBe('/v1:run');
  });

  test('a rule matches only its methods, and GET does not imply HEAD', () => {
    const rules = [rule('/a', { on: 'GET POST', name: 'read' }), rule('/a', { name: 'rest' })];
    expect(findRule(rules, createInput('/a'))).toBe('read');
    expect(findRule(rules, createInput('/a', { method: 'HEAD' }))).toBe('rest');
  });

  test('a rule matches only its host, ignoring case, port and trailing dot', () => {
    const rules = [
      rule('/a', { host: 'admin.test', name: 'admin' }),
      rule('/a', { name: 'any' }),
      rule('/b', { host: 'admin.test', name: 'late' }),
    ];
    expect(findRule(rules, createInput('/a', { host: 'ADMIN.test:8443' }))).toBe('admin');
    expect(findRule(rules, createInput('/a', { host: 'admin.test.' }))).toBe('admin');
    expect(findRule(rules, createInput('/a'))).toBe('any');
    expect(findRule(rules, createInput('/b'))).toBeUndefined();
    expect(findRule([rule('/**', { name: 'first' }), ...rules], createInput('/a', { host: 'admin.test' }))).toBe(
      'first',
    );
    expect(normalizeHost('[::1]:80')).toBe('[::1]');
  });

  test('P04 the first matching rule accepts or rejects an encoded slash; later rules are not tried', () => {
    const rules = [rule('/admin/**'), rule('/files/*', { encodedSlash: true }), rule('/files/**')];
    expect(findRule(rules, createInput('/files/a%2Fb'))).toBe('/files/*');
    expect(findRule(rules, createInput('/files/a%2Fb/c'))).toBeUndefined();
    expect(compileRules(rules).encodedSlash).toBe(true);
    const open = [rule('/admin/**'), rule('/**', { encodedSlash: true })];
    expect(findRule(open, createInput('/admin/a%2Fb'))).toBeUndefined();
    expect(findRule(open, createInput('/other/a%2Fb'))).toBe('/**');
    expect(
      compileRules(open)
        .trace(createInput('/admin/a%2Fb'))
        .map(({ mismatch }) => mismatch),
    ).toEqual(['encoded_slash']);
  });

  test('P04 a path that an earlier rule would match with %2F decoded matches no later rule', () => {
    const rules = [rule('/admin/**'), rule('/**', { encodedSlash: true })];
    expect(findRule(rules, createInput('/admin%2Fx'))).toBeUndefined();
    expect(findRule(rules, createInput('/x/admin%2Fx'))).toBe('/**');
    expect(
      compileRules(rules)
        .trace(createInput('/admin%2Fx'))
        .map(({ mismatch }) => mismatch),
    ).toEqual(['path', 'ambiguous_path']);
  });

  test('a trace lists each rule up to the matching one and why it did not match', () => {
    const rules = [
      rule('/b'),
      rule('/a', { on: 'POST', name: 'post' }),
      rule('/a', { host: 'other.test', name: 'host' }),
      rule('/a'),
      rule('/**'),
    ];
    expect(
      compileRules(rules)
        .trace(createInput('/a'))
        .map(({ rule: { name }, mismatch }) => [name, mismatch]),
    ).toEqual([
      ['/b', 'path'],
      ['post', 'method'],
      ['host', 'host'],
      ['/a', undefined],
    ]);
    expect(
      compileRules(rules.slice(0, 2))
        .trace(createInput('/x'))
        .map(({ mismatch }) => mismatch),
    ).toEqual(['path', 'path']);
  });

  test('the rule tree finds the same rule as a linear search', () => {
    const names = fc.constantFrom('a', 'b', '*');
    const path = fc.tuple(fc.array(names, { maxLength: 3 }), fc.boolean());
    const anyRule = fc
      .tuple(
        path,
        fc.constantFrom(undefined, 'GET', 'POST'),
        fc.constantFrom(undefined, 'gate.test', 'x.test'),
        fc.boolean(),
      )
      .map(([[parts, rest], on, host, encodedSlash]) =>
        rule(`/${[...parts, ...(rest ? ['**'] : [])].join('/')}`, {
          encodedSlash,
          ...(on && { on }),
          ...(host && { host }),
        }),
      );
    const input = fc
      .tuple(fc.array(fc.constantFrom('a', 'b', 'c', 'a%2Fb'), { maxLength: 4 }), fc.constantFrom('GET', 'PUT'))
      .map(([parts, method]) => createInput(`/${parts.join('/')}`, { method }));
    fc.assert(
      fc.property(fc.array(anyRule, { maxLength: 12 }), input, (rules, request) => {
        const compiled = compileRules(rules);
        const first = (segments: readonly string[]): number =>
          rules.findIndex((candidate) => {
            const misfit = compileRules([candidate]).trace({
              ...request,
              target: { ...request.target, segments },
            })[0]?.mismatch;
            return misfit === undefined || misfit === 'encoded_slash';
          });
        const { segments, encodedSlash } = request.target;
        const linear = first(segments);
        const decoded = first(segments.flatMap((segment) => segment.split('/')));
        const refused = encodedSlash && (!rules[linear]?.encodedSlash || (decoded >= 0 && decoded < linear));
        const expected = refused ? undefined : rules[linear];
        expect(compiled.match(request)).toBe(expected);
        // Every skipped rule in a trace has a reason.
        const trace = compiled.trace(request);
        const passed = expected === undefined ? trace : trace.slice(0, -1);
        expect(passed.every(({ mismatch }) => mismatch !== undefined)).toBe(true);
        expect(trace.length).toBe(linear < 0 ? rules.length : linear + 1);
      }),
      { numRuns: 3_000 },
    );
  });

  test('P13 a path that an earlier rule would match without its ;parameters matches no rule', () => {
    const rules = [rule('/admin/**'), rule('/**')];
    expect(findRule(rules, createInput('/admin;x'))).toBeUndefined();
    expect(findRule(rules, createInput('/admin;x/y'))).toBeUndefined();
    expect(findRule(rules, createInput('/admin%3Bx/y'))).toBeUndefined();
    expect(findRule(rules, createInput('/admin/y;v=1'))).toBe('/admin/**');
    expect(findRule(rules, createInput('/files/a;v=1'))).toBe('/**');
    expect(
      compileRules(rules)
        .trace(createInput('/admin;x'))
        .map(({ mismatch }) => mismatch),
    ).toEqual(['path', 'ambiguous_path']);
  });

  test('the cost of a match does not depend on the number of rules', () => {
    const many = compileRules(Array.from({ length: 1_000 }, (_, index) => rule(`/service-${index}/**`)));
    const touched = { count: 0 };
    const segments = new Proxy(['service-999', 'x'], {
      get(list, key, receiver) {
        if (typeof key === 'string' && /^\d+$/.test(key)) touched.count += 1;
        return Reflect.get(list, key, receiver) as unknown;
      },
    });
    expect(many.match(createInput('/', { target: { segments, encodedSlash: false } }))?.name).toBe('/service-999/**');
    expect(touched.count).toBeLessThan(8);
  });
});
