import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { type ParsedTarget, parseTarget } from '../../src/domain/request-target.ts';

const OWN = new Set(['gate.test:8443', 'api.test']);

function read(raw: string, options: { method?: string; encodedSlash?: boolean } = {}): ParsedTarget {
  const { method = 'GET', encodedSlash = false } = options;
  return parseTarget(raw, { method, encodedSlash, isServedAuthority: (authority) => OWN.has(authority) });
}

/** The wire form of a target, or the reason for its rejection. */
function outcome(raw: string, options?: Parameters<typeof read>[1]): string {
  const reading = read(raw, options);
  return reading.kind === 'target' ? reading.target.path + reading.target.query : reading.kind;
}

const REFUSED: Readonly<Record<string, readonly string[]>> = {
  'P01 dot segments': ['/public/../admin/x', '/..', '/.', '/a/./b', '/a/..', '/a/../'],
  'P02 encoded dot segments': ['/public/%2e%2e/admin', '/public/%2E./admin', '/public/.%2e/admin', '/%2e'],
  'P03 dot segments with a path parameter': ['/public/..;/admin', '/public/..;a=b/admin', '/public/%2e%2e%3b/x'],
  'P04 encoded slashes': ['/public%2f..%2fadmin', '/public%2Fx'],
  'P05 backslashes': ['/public\\..\\admin', '/public%5c..%5cadmin'],
  'P06 empty segments': ['//admin/x', '/public//../admin', '///', '//'],
  'P08 control characters': ['/admin%00.js', '/admin%0a', '/admin%7f', '/a\u0000b', '/a\u001fb', '/a b'],
  'P09 double encodings': ['/%2561dmin', '/%252e%252e/admin', '/%252f', '/%25%32%65'],
  'P10 overlong, invalid and non-standard encodings': [
    '/%c0%ae%c0%ae/admin',
    '/%u002e',
    '/%ff',
    '/%ed%a0%80',
    '/%c3',
    '/%c3a%a9',
  ],
  'P11 malformed percent-encodings': ['/%zz', '/%', '/%2', '/a%'],
  'P12 fragments': ['/public#/../admin', '/public?x#y'],
  'unencoded non-ASCII and control characters': ['/é', '/a?é', '/a?\u0007'],
  'targets that are not paths': ['', 'admin', '?x', 'ftp://gate.test:8443/', 'http:/a', 'http://', 'http:///x'],
};

describe('targets that are rejected rather than normalized', () => {
  for (const [what, targets] of Object.entries(REFUSED))
    test(what, () => {
      for (const target of targets) expect([target, outcome(target)]).toEqual([target, 'malformed']);
    });
});

test('P07 percent-encoded unreserved characters are decoded once; other encodings stay encoded', () => {
  expect(outcome('/%61dmin/x')).toBe('/admin/x');
  expect(outcome('/%7euser/%41-%5f')).toBe('/~user/A-_');
  expect(outcome('/admin%20')).toBe('/admin%20');
  expect(outcome('/caf%c3%a9')).toBe('/caf%C3%A9');
  expect(outcome('/100%25')).toBe('/100%25');
  expect(outcome('/public%23')).toBe('/public%23');
});

test('P04 if allowed, an encoded slash stays within its segment, but cannot hide dot segments', () => {
  const reading = read('/files/a%2fb', { encodedSlash: true });
  expect(reading).toMatchObject({
    kind: 'target',
    target: { path: '/files/a%2Fb', segments: ['files', 'a/b'], encodedSlash: true },
  });
  expect(outcome('/proxy/https%3A%2F%2Fx', { encodedSlash: true })).toBe('/proxy/https%3A%2F%2Fx');
  for (const target of ['/files/..%2Fadmin', '/files/a%2f%2e%2e%2fb', '/files/a%2F..', '/files/a%5cb'])
    expect([target, outcome(target, { encodedSlash: true })]).toEqual([target, 'malformed']);
});

test('P13 the query is forwarded unchanged and does not affect the path', () => {
  expect(outcome('/public?x=/../admin')).toBe('/public?x=/../admin');
  expect(outcome('/admin?/public/%2e%zz')).toBe('/admin?/public/%2e%zz');
  expect(read('/a/b?c')).toMatchObject({ target: { segments: ['a', 'b'], query: '?c' } });
  expect(read('/a/')).toMatchObject({ target: { segments: ['a', ''], query: '' } });
});

test('P14 an absolute URL with the host of the gateway is reduced to its path', () => {
  expect(outcome('http://evil.test/admin')).toBe('misdirected');
  expect(outcome('http://u:p@gate.test:8443/')).toBe('malformed');
  expect(outcome('https://GATE.test:8443/files/1?x')).toBe('/files/1?x');
  expect(outcome('https://api.test:443/files/%2e%2e')).toBe('malformed');
  expect(outcome('https://api.test:443')).toBe('/');
  expect(outcome('http://api.test:443/')).toBe('misdirected');
  expect(outcome('http://api.test\\@evil.test/')).toBe('malformed');
});

test('P15 the asterisk form is valid for OPTIONS only', () => {
  expect(outcome('*', { method: 'OPTIONS' })).toBe('asterisk');
  expect(outcome('*')).toBe('malformed');
});

const PIECES = [
  '/',
  '//',
  '.',
  '..',
  '%2e',
  '%2F',
  '%5c',
  '%25',
  '%32',
  '%65',
  '%61',
  '%c3%a9',
  '%00',
  ';',
  '?',
  '#',
  '%',
  'a',
  'B',
  '~',
  '\\',
  '%3b',
  '%7E',
  ':',
  '@',
];
const targets = fc.oneof(
  fc.array(fc.constantFrom(...PIECES), { maxLength: 12 }).map((pieces) => `/${pieces.join('')}`),
  fc.string({ maxLength: 20 }).map((text) => `/${text}`),
);

test('P20 canonicalization is idempotent', () => {
  fc.assert(
    fc.property(targets, fc.boolean(), (raw, encodedSlash) => {
      const first = read(raw, { encodedSlash });
      if (first.kind !== 'target') return;
      expect(read(first.target.path + first.target.query, { encodedSlash })).toEqual(first);
    }),
    { numRuns: 5_000, seed: 20 },
  );
});

test('P20 rules match the decoded path that is sent upstream, without dot segments', () => {
  fc.assert(
    fc.property(targets, fc.boolean(), (raw, encodedSlash) => {
      const reading = read(raw, { encodedSlash });
      if (reading.kind !== 'target') return;
      const { path, segments } = reading.target;
      expect(segments).toEqual(path.slice(1).split('/').map(decodeURIComponent));
      // An independent parser must find the same path.
      expect(new URL(`http://x${path}`).pathname).toBe(path);
    }),
    { numRuns: 5_000, seed: 20 },
  );
});

describe('the fast parser for plain paths agrees with the full parser', () => {
  // A query does not change how a path is parsed, and an encoded letter at its end disables the fast parser.
  const letters = fc.constantFrom(...Array.from("ab.~_-!$&'()*+,=:@|[];%/2e#\\é "));
  const paths = fc.array(letters, { maxLength: 12 }).map((list) => `/${list.join('')}`);

  test('for any path', () => {
    fc.assert(
      fc.property(paths, (path) => {
        const short = read(path);
        const long = read(`${path}%61`);
        if (short.kind !== 'target' || long.kind !== 'target') return;
        expect(`${short.target.path}a`).toBe(long.target.path);
        expect([...short.target.segments.slice(0, -1), `${short.target.segments.at(-1)}a`]).toEqual(
          long.target.segments,
        );
      }),
      { numRuns: 2_000, seed: 20 },
    );
  });

  test('and accepts nothing the full parser rejects', () => {
    fc.assert(
      fc.property(paths, (path) => {
        const parts = path.slice(1).split('/');
        const isOdd =
          parts.slice(0, -1).includes('') ||
          parts.some((part) => /^\.{1,2}(?:$|;)/.test(part)) ||
          /[^A-Za-z0-9._~!$&'()*+,;=:@|[\]%/-]/.test(path);
        if (isOdd) expect(read(path).kind).toBe('malformed');
      }),
      { numRuns: 2_000, seed: 20 },
    );
  });
});
