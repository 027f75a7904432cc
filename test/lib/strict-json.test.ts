import { expect, test } from 'vitest';
import { type Json, JsonError, parseStrictJson, parseStrictJsonObject } from '../../src/lib/strict-json.ts';

test.each<[string, string]>([
  ['twice', '{"a":1,"a":1}'],
  ['apart', '{"a":1,"b":2,"a":3}'],
  ['with an escape', '{"a":1,"\\u0061":2}'],
  ['with white space before the colon', '{"a" : 1,\n"a"\t:2}'],
  ['in an inner object', '{"x":{"a":1,"a":2}}'],
  ['in an array', '[{"a":1},{"b":1,"b":2}]'],
  ['that is a number', '{"1":1,"1":2}'],
  ['__proto__', '{"__proto__":1,"__proto__":2}'],
  ['in an object that is replaced by the second value', '{"a":{"b":1,"b":1},"a":2}'],
  ['behind text that looks like names', '{"x":"\\":{","a":1,"a":2}'],
  ['that is empty', '{"":1,"":2}'],
])('a repeated name is rejected: %s', (_, text) => {
  expect(() => parseStrictJson(text)).toThrow(JsonError);
});

test.each([
  '{"a":"b:c,{}[]","b":"a"}',
  '{"a":"\\"","b":"\\\\","c":"\\\\\\":"}',
  '[{"a":1},{"a":1}]',
  '{"a":{"a":{"a":1}}}',
  '{"A":1,"a":2}',
  '{"__proto__":{"x":1},"constructor":2}',
  '"a:b"',
  '12',
  'null',
  ' {} ',
])('%s is parsed as JSON.parse does', (text) => {
  expect(JSON.stringify(parseStrictJson(text))).toBe(JSON.stringify(JSON.parse(text)));
});

test.each(['', '{', '{"a"}', '{"a":1,}', "{'a':1}", '{"a":1}x', '"\\x"', '{"a":"\n"}', '[1,]', 'undefined'])(
  '%j is not valid JSON',
  (text) => {
    expect(() => parseStrictJson(text)).toThrow('not valid JSON');
  },
);

test('objects at any depth have no prototype', () => {
  const parsed = parseStrictJson('{"a":{"b":[{"c":{}}]}}') as never;
  const objects = [parsed, parsed['a'], parsed['a']['b'][0], parsed['a']['b'][0]['c']];
  expect(objects.map((object) => Object.getPrototypeOf(object))).toEqual([null, null, null, null]);
  expect(parseStrictJsonObject('{"sub":"x"}')?.['constructor']).toBeUndefined();
});

test('nesting is limited to 32 levels, and brackets in strings do not count', () => {
  const nest = (depth: number): string => '['.repeat(depth) + ']'.repeat(depth);
  expect(parseStrictJson(nest(32))).toBeDefined();
  expect(() => parseStrictJson(nest(33))).toThrow('nested too deeply');
  expect(() => parseStrictJson('{"a":'.repeat(33))).toThrow('nested too deeply');
  expect(() => parseStrictJson(nest(1_000_000))).toThrow('nested too deeply');
  expect(parseStrictJson(`"${'['.repeat(100)}"`)).toHaveLength(100);
  expect(parseStrictJson(JSON.stringify(Array.from({ length: 100 }, () => [[]])))).toHaveLength(100);
});

/** Another way to find repeated names: the reviver of `JSON.parse` does not see them, but tokens of the text do. */
function parseByTokens(text: string): Json | undefined {
  const open: (Set<string> | undefined)[] = [];
  for (const [token, raw = '', colon] of text.matchAll(/"((?:[^"\\]|\\.)*)"(\s*:)?|[{}[\]]/gs)) {
    if (token === '{') open.push(new Set());
    else if (token === '[') open.push(undefined);
    else if (token === '}' || token === ']') open.pop();
    else if (colon !== undefined) {
      const name = JSON.parse(`"${raw}"`) as string;
      if (open.at(-1)?.has(name) === true) return undefined;
      open.at(-1)?.add(name);
    }
  }
  return JSON.parse(text) as Json;
}

test('of 100,000 random texts the same are accepted as by a check of every token', () => {
  const parts = [
    '{',
    '}',
    '[',
    ']',
    ':',
    ',',
    '1',
    'null',
    '"',
    '\\',
    ' ',
    '"a"',
    '"b"',
    '"\\u0061"',
    '"\\""',
  ];
  const pairs = ['"a":1', '"b":{}', '"a":[]', '"c":{"a":1}', '"__proto__":2', '"d":"}:{"', '"e":"\\\\"'];
  let state = 11;
  const random = (below: number): number => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
    return (state >>> 8) % below;
  };
  const pick = (list: readonly string[]): string => list[random(list.length)] ?? '';
  let accepted = 0;
  for (let count = 0; count < 100_000; count += 1) {
    const text =
      count % 2 === 0
        ? Array.from({ length: 1 + random(10) }, () => pick(random(2) === 0 ? parts : pairs)).join('')
        : `{${Array.from({ length: random(5) }, () => pick(pairs)).join(',')}}`;
    const expected = attempt(() => parseByTokens(text));
    expect([text, attempt(() => parseStrictJson(text))]).toEqual([text, expected]);
    if (expected !== undefined) accepted += 1;
  }
  expect(accepted).toBeGreaterThan(1_000);
});

function attempt(parse: () => Json | undefined): string | undefined {
  try {
    return JSON.stringify(parse());
  } catch {
    return undefined;
  }
}
