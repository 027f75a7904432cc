import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { type AccessRule, parsePattern } from '../../src/domain/access-rule.ts';
import { foldCase, type PathComparison } from '../../src/domain/path-comparison.ts';
import type { LimitKey } from '../../src/domain/route-limit.ts';
import { compileRules, type MatchInput } from '../../src/domain/rule-matcher.ts';
import { covers } from '../../src/domain/scope.ts';
import { rule } from '../support/proxy-harness.ts';

const createInput = (path: string, options: Partial<MatchInput> = {}): MatchInput => ({
  method: 'GET',
  host: 'gate.test',
  target: { segments: path.slice(1).split('/').map(decodeURIComponent), encodedSlash: path.includes('%2F') },
  ...options,
});
const findRule = (rules: readonly AccessRule[], path: string, options?: Partial<MatchInput>) =>
  compileRules(rules).match(createInput(path, options))?.name;

const DISTINCT: PathComparison = { letterCase: 'distinct', trailingSlash: 'distinct' };
const SAME: PathComparison = { letterCase: 'same', trailingSlash: 'same' };

describe('a path that is another spelling of a stricter rule', () => {
  const rules = [rule('/admin', 'admin:manage'), rule('/reports/**', 'reports:read'), rule('/**', 'public')];

  test('is not matched by a weaker rule', () => {
    for (const path of [
      '/Admin',
      '/ADMIN',
      '/admin/',
      '/Admin/',
      '/Reports/x',
      '/reporTs',
      '/REPORTS/',
      '/Reports/a/b/',
    ])
      expect([path, findRule(rules, path)]).toEqual([path, undefined]);
    expect(findRule(rules, '/admin')).toBe('/admin');
    expect(findRule(rules, '/reports/X/')).toBe('/reports/**');
    for (const path of ['/', '/Adm', '/administration', '/admin/x', '/x/Admin', '/Other/'])
      expect([path, findRule(rules, path)]).toEqual([path, '/**']);
  });

  test('is recognised in Unicode: long s, Kelvin sign, dotted and dotless i, sharp s, full-width letters', () => {
    const literal = [rule('/books', 'a:b'), rule('/kiosk', 'a:b'), rule('/straße', 'a:b'), rule('/**', 'public')];
    for (const path of [
      '/bookſ',
      '/boo\u212as',
      '/\u212aiosk',
      '/kıosk',
      '/kİosk',
      '/STRASSE',
      '/straẞe',
      '/ｂｏｏｋｓ',
    ])
      expect([path, findRule(literal, path)]).toEqual([path, undefined]);
    expect(findRule(literal, '/straße')).toBe('/straße');
    expect(findRule(literal, '/bücher')).toBe('/**');
    for (const [spelling, other] of [
      ['ς', 'Σ'],
      ['ﬁ', 'FI'],
      ['Å', 'å'],
      ['é', 'E\u0301'],
    ] as const)
      expect(foldCase(spelling)).toBe(foldCase(other));
  });

  test('is recognised with ;parameters, empty segments and encoded slashes', () => {
    const open = [rule('/admin/**', 'admin:manage'), rule('/**', 'public', { encodedSlash: true })];
    for (const path of [
      '/Admin;x',
      '/admin;/x',
      '/;/Admin',
      '/;a/admin/x',
      '/Admin%2Fx',
      '/admin;q%2Fx',
      '/Admin;q%2Fx',
      '/admin%2F',
      '/%2Fadmin',
      '/%2F;x%2FAdmin',
    ])
      expect([path, findRule(open, path)]).toEqual([path, undefined]);
    expect(findRule(open, '/x;y%2Fz/a%2Fb')).toBe('/**');
    const rules = [rule('/admin/x', 'admin:manage'), rule('/*', 'public', { encodedSlash: true })];
    for (const path of ['/admin%2Fx', '/Admin%2FX', '/admin%2Fx%2F', '/ADMIN;y%2Fx'])
      expect([path, findRule(rules, path)]).toEqual([path, undefined]);
    expect(findRule(rules, '/Admin%2Fy')).toBe('/*');
  });

  test('may be matched by a rule that is as strict', () => {
    const equal = [rule('/admin/**', 'admin:manage'), rule('/**', 'admin:manage,read')];
    expect(findRule(equal, '/Admin/x')).toBe('/**');
    const clients = [
      rule('/a', 'any-token', { clients: ['x', 'y'] }),
      rule('/*', 'any-token', { clients: ['x'] }),
      rule('/**', 'any-token'),
    ];
    expect(findRule(clients, '/A')).toBe('/*');
    expect(findRule(clients, '/A/')).toBeUndefined();
  });

  test('is rejected if the stricter rule accepts fewer audiences of the tokens of another issuer', () => {
    const issuers = new Set(['own', 'corp']);
    const audiences = new Set(['files']);
    const strict = rule('/admin/**', 'any-token', { issuers, audiences });
    expect(findRule([strict, rule('/**', 'any-token', { issuers })], '/Admin/x')).toBeUndefined();
    expect(findRule([strict, rule('/**', 'any-token', { issuers, audiences })], '/Admin/x')).toBe('/**');
  });

  test('is also rejected by a report-only rule, which itself is not stricter than any other', () => {
    expect(findRule([rule('/a', 'a:b'), rule('/**', 'a:b', { reportOnly: true })], '/A')).toBeUndefined();
    expect(findRule([rule('/a', 'a:b', { reportOnly: true }), rule('/**', 'public')], '/A')).toBe('/**');
  });

  test('is rejected if the stricter rule limits requests, and the other does not limit them as much', () => {
    const limits = (...rates: readonly (readonly [LimitKey, number])[]) => ({
      limits: rates.map(([per, perSecond]) => ({
        name: per,
        per,
        rate: { perSecond, burst: perSecond },
        quota: perSecond,
        window: 1,
      })),
    });
    const ten = limits(['identity', 10]);
    const find = (strict: Parameters<typeof rule>[2], weak: Parameters<typeof rule>[2]) =>
      findRule([rule('/search', 'a:b', strict), rule('/**', 'a:b', weak)], '/Search');
    for (const weak of [{}, limits(['identity', 11]), limits(['client', 10]), limits(['address', 1])])
      expect(find(ten, weak)).toBeUndefined();
    expect(find(ten, { ...ten, reportOnly: true })).toBeUndefined();
    for (const weak of [ten, limits(['identity', 9]), limits(['client', 11], ['route', 10])])
      expect(find(ten, weak)).toBe('/**');
    expect(find(limits(['identity', 10], ['route', 50]), ten)).toBeUndefined();
    expect(find({ ...ten, reportOnly: true }, {})).toBe('/**');
    const open = [rule('/search', 'public', limits(['address', 5])), rule('/**', 'public')];
    expect(findRule(open, '/search/')).toBeUndefined();
    expect(findRule(open, '/search')).toBe('/search');
    expect(findRule(open, '/other/')).toBe('/**');
    // As `limits.routes` does: public rules count by address, others by identity.
    const byDefault = [
      rule('/docs', 'public', limits(['address', 100])),
      rule('/login', 'public', limits(['address', 5])),
      rule('/**', 'any-token', limits(['identity', 100])),
    ];
    expect([findRule(byDefault, '/Docs/'), findRule(byDefault, '/Login')]).toEqual(['/**', undefined]);
  });

  test('is rejected if the stricter rule does not allow WebSockets', () => {
    const sockets = [rule('/a', 'any-token'), rule('/**', 'any-token', { websocket: true })];
    expect(findRule(sockets, '/A')).toBeUndefined();
  });

  test('is compared only with rules for the same host and method', () => {
    const some = [
      rule('/a', 'a:b', { methods: ['POST'] }),
      rule('/b', 'a:b', { host: 'other.test' }),
      rule('/**', 'public'),
    ];
    expect(findRule(some, '/A')).toBe('/**');
    expect(findRule(some, '/A', { method: 'POST' })).toBeUndefined();
    expect(findRule(some, '/B')).toBe('/**');
    expect(findRule(some, '/B', { host: 'Other.test:1' })).toBeUndefined();
  });

  test('is rejected regardless of the order of the two rules, unless the stricter one matches it as sent', () => {
    expect(findRule([rule('/*', 'public'), rule('/admin/', 'a:b')], '/admin')).toBeUndefined();
    expect(findRule([rule('/*', 'public'), rule('/admin/', 'a:b')], '/other')).toBe('/*');
    expect(findRule([rule('/Files', 'public'), rule('/files', 'a:b')], '/Files')).toBeUndefined();
    expect(findRule([rule('/docs', 'public'), rule('/docs/**', 'a:b')], '/docs')).toBe('/docs');
    expect(findRule([rule('/', 'public'), rule('/**', 'a:b')], '/')).toBe('/');
    // For GET, the later rule is never reached.
    expect(findRule([rule('/**', 'public', { methods: ['GET'] }), rule('/a/', 'a:b')], '/a')).toBe('/**');
  });

  test('is matched if the upstream distinguishes spellings', () => {
    const weak = (paths: PathComparison) => [rule('/admin', 'a:b'), rule('/**', 'public', { paths })];
    expect(findRule(weak(DISTINCT), '/Admin/')).toBe('/**');
    expect(findRule(weak({ ...DISTINCT, letterCase: 'unknown' }), '/admin/')).toBe('/**');
    expect(findRule(weak({ ...DISTINCT, letterCase: 'unknown' }), '/Admin')).toBeUndefined();
    expect(findRule(weak({ ...DISTINCT, trailingSlash: 'unknown' }), '/Admin')).toBe('/**');
    expect(findRule(weak({ ...DISTINCT, trailingSlash: 'unknown' }), '/admin/')).toBeUndefined();
    // The upstream that would get the request is decisive.
    expect(findRule([rule('/admin', 'a:b', { paths: DISTINCT }), rule('/**', 'public')], '/Admin')).toBeUndefined();
  });

  test('is matched by the stricter rule itself if its upstream ignores the difference', () => {
    const known = [rule('/admin', 'a:b', { paths: SAME }), rule('/**', 'public', { paths: SAME })];
    for (const path of ['/admin', '/Admin', '/ADMIN/']) expect([path, findRule(known, path)]).toEqual([path, '/admin']);
    expect(findRule(known, '/admins')).toBe('/**');
    expect(findRule([rule('/a/', 'public', { paths: SAME })], '/A')).toBe('/a/');
  });

  test('is explained by a trace that ends with the weaker rule', () => {
    expect(
      compileRules(rules)
        .trace(createInput('/Reports/x'))
        .map(({ rule: { name }, mismatch }) => [name, mismatch]),
    ).toEqual([
      ['/admin', 'path'],
      ['/reports/**', 'equivalent_path'],
      ['/**', 'ambiguous_path'],
    ]);
  });
});

test('a configuration without another spelling under a stricter rule has no conflicts', () => {
  const rules = [
    rule('/health', 'public'),
    rule('/files/**', 'files:read', { methods: ['GET'] }),
    rule('/Reports/**', 'reports:write'),
    rule('/docs', 'public'),
    rule('/docs/**', 'files:read'),
    rule('/files/**', 'files:write'),
  ];
  expect(compileRules(rules).conflicts).toEqual([]);
  const [conflict] = compileRules([...rules, rule('/**', 'any-token')]).conflicts;
  expect([conflict?.rule.name, conflict?.stricter.name]).toEqual(['/**', '/files/**']);
});

/** A brute-force oracle: checks every kind of caller and every spelling. */
const CALLERS = ['none', 'x', 'y', 'z'].flatMap((client) =>
  ['', 'a', 'b', 'a b'].map((held) => ({ client, held: new Set(held.split(' ').filter(Boolean)) })),
);
const allows = ({ requirement, clients, reportOnly }: AccessRule, { client, held }: (typeof CALLERS)[number]) => {
  if (requirement.kind === 'public' || reportOnly === true) return true;
  if (client === 'none' || (clients !== undefined && !clients.has(client))) return false;
  return requirement.kind !== 'scope' || covers(new Map([['r', held]]), requirement.scope);
};
const isWeaker = (rule: AccessRule, other: AccessRule): boolean =>
  CALLERS.some((caller) => allows(rule, caller) && !allows(other, caller));

function listSpellings(segments: readonly string[], { letterCase, trailingSlash }: PathComparison): string[][] {
  let all: string[][] = [[]];
  for (const segment of segments) {
    const forms = letterCase === 'distinct' ? [segment] : [segment.toLowerCase(), segment.toUpperCase()];
    all = all.flatMap((before) => [...new Set(forms)].map((form) => [...before, form]));
  }
  if (trailingSlash === 'distinct') return all;
  return all.flatMap((path) => (path.at(-1) === '' ? [path, path.slice(0, -1)] : [path, [...path, '']]));
}

function matchesRule({ pattern, methods, host, paths }: AccessRule, input: MatchInput, sent: readonly string[]) {
  if (methods?.has(input.method) === false) return false;
  if (host !== undefined && host !== input.host) return false;
  const same: PathComparison = {
    letterCase: paths?.letterCase === 'same' ? 'same' : 'distinct',
    trailingSlash: paths?.trailingSlash === 'same' ? 'same' : 'distinct',
  };
  return listSpellings(sent, same).some((segments) => {
    for (const [index, wanted] of pattern.entries()) {
      if (wanted === '**') return segments.length >= index;
      const segment = segments[index];
      if (segment === undefined) return false;
      if (wanted === '*' ? segment === '' : wanted.literal !== segment) return false;
    }
    return segments.length === pattern.length;
  });
}

const reading = fc.constantFrom<PathComparison['letterCase']>('unknown', 'unknown', 'distinct', 'same');
const anyRule = fc
  .record({
    parts: fc.array(fc.constantFrom('a', 'A', 'b', '*'), { maxLength: 3 }),
    end: fc.constantFrom('', '', '/', '/**'),
    asks: fc.constantFrom('public', 'any-token', 'r:a', 'r:b', 'r:a,b'),
    clients: fc.constantFrom(undefined, undefined, ['x'], ['x', 'y']),
    methods: fc.constantFrom(undefined, undefined, ['GET'], ['POST']),
    host: fc.constantFrom(undefined, undefined, 'gate.test', 'other.test'),
    paths: fc.option(fc.record({ letterCase: reading, trailingSlash: reading }), { nil: undefined }),
    reportOnly: fc.boolean(),
  })
  .map(({ parts, end, asks, clients, methods, host, paths, reportOnly }) => {
    const path = `/${parts.join('/')}${parts.length === 0 ? end.slice(1) : end}`;
    if (!parsePattern(path).ok) throw new Error(path);
    return rule(path, asks, {
      ...(clients && asks !== 'public' && { clients }),
      ...(methods && { methods }),
      ...(host && { host }),
      ...(paths && { paths }),
      ...(reportOnly && asks === 'r:a' && { reportOnly }),
    });
  });
const anyQuestion = fc
  .record({
    parts: fc.array(fc.constantFrom('a', 'A', 'b', 'B'), { minLength: 1, maxLength: 3 }),
    slash: fc.boolean(),
    method: fc.constantFrom('GET', 'POST'),
  })
  .map(({ parts, slash, method }) => createInput(`/${parts.join('/')}${slash ? '/' : ''}`, { method }));

test('no rule accepts a request that another rule rejects in a spelling that the upstream may treat as equal', () => {
  fc.assert(
    fc.property(fc.array(anyRule, { maxLength: 6 }), anyQuestion, (rules, input) => {
      const { segments } = input.target;
      const firstFor = (sent: readonly string[]) => rules.find((candidate) => matchesRule(candidate, input, sent));
      const asSent = firstFor(segments);
      const found = compileRules(rules).match(input);
      const all =
        asSent === undefined
          ? []
          : listSpellings(segments, asSent.paths ?? { letterCase: 'unknown', trailingSlash: 'unknown' });
      if (found !== undefined) {
        expect(found).toBe(asSent);
        for (const spelling of all) {
          const other = firstFor(spelling);
          if (other !== undefined && !matchesRule(other, input, segments)) expect(isWeaker(found, other)).toBe(false);
        }
      } else if (asSent !== undefined) {
        // A request is rejected only because of a stricter rule.
        const stricter = rules.some(
          (stricter) =>
            isWeaker(asSent, stricter) &&
            !matchesRule(stricter, input, segments) &&
            all.some((spelling) => matchesRule(stricter, input, spelling)),
        );
        expect(stricter).toBe(true);
      }
    }),
    { numRuns: 4_000 },
  );
});
