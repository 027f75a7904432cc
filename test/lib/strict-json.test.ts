import { Worker } from 'node:worker_threads';
import { expect, onTestFinished, test } from 'vitest';
import { type Json, parseStrictJson } from '../../src/lib/strict-json.ts';

test.each([
  ['an object', '{"a":"b"}'],
  ['colons, brackets, quotes and backslashes in strings', '{"a:{[\\"\\\\":":\\"}]","b\\\\":[":",":\\\\"]}'],
  ['the same name in different objects', '{"a":{"a":[{"a":1},{"a":2}]}}'],
  ['a name that is also a value', '{"a":"a","b":"a"}'],
  ['names of Object.prototype', '{"__proto__":{"x":1},"constructor":2,"hasOwnProperty":3}'],
  ['white space', ' { "a" :\n[ 1 ,\t{ } ]\r} '],
  ['32 levels', `${'['.repeat(32)}${']'.repeat(32)}`],
  ['a string', '"{\\"a\\":1,\\"a\\":2}"'],
])('%s is parsed as by JSON.parse', (_, text) => {
  expect(JSON.stringify(parseStrictJson(text))).toBe(JSON.stringify(JSON.parse(text)));
});

test('objects have no prototype, at every level', () => {
  const value = parseStrictJson('{"a":[{"__proto__":{"x":1}}]}') as { a: [Record<string, object>] };
  const { __proto__: own } = Object.getOwnPropertyDescriptors(value.a[0]);
  for (const object of [value, value.a[0], own?.value]) expect(Object.getPrototypeOf(object)).toBeNull();
});

test.each([
  ['in one object', '{"a":1,"a":2}'],
  ['with the same value', '{"a":1,"a":1}'],
  ['one of them escaped', '{"a":1,"\\u0061":2}'],
  ['with a quote in it', '{"\\"":1,"\\"":2}'],
  ['in a nested object', '{"x":[0,{"a":1,"b":2,"a":3}]}'],
  ['with another member inside the value that JSON.parse discards', '{"a":{"b":1},"a":{"c":2}}'],
  ['as __proto__', '{"__proto__":1,"__proto__":2}'],
  ['as the empty string', '{"":1,"":2}'],
  ['as a number', '{"1":1,"1":2}'],
  ['with white space before the colon', '{"a" : 1,\n"a"\t:2}'],
  ['in an object that is replaced by the second value', '{"a":{"b":1,"b":1},"a":2}'],
  ['after text that looks like names', '{"x":"\\":{","a":1,"a":2}'],
])('the same name twice is refused: %s', (_, text) => {
  expect(() => parseStrictJson(text)).toThrow('the same name twice in one object');
});

test('more than 32 levels are refused, also 10,000', () => {
  for (const depth of [33, 10_000]) {
    expect(() => parseStrictJson(`${'['.repeat(depth)}${']'.repeat(depth)}`)).toThrow('nested too deeply');
    expect(() => parseStrictJson(`${'{"a":'.repeat(depth)}1${'}'.repeat(depth)}`)).toThrow('nested too deeply');
  }
});

test.each(['', '{', '{"a"}', '{"a":1,}', "{'a':1}", '{"a":1}x', '"\\x"', '{"a":"\n"}', '[1,]', 'undefined'])(
  '%j is not valid JSON',
  (text) => {
    expect(() => parseStrictJson(text)).toThrow('not valid JSON');
  },
);

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

test('of 20,000 random texts the same are accepted as by a check of every token', () => {
  const parts = ['{', '}', '[', ']', ':', ',', '1', 'null', '"', '\\', ' ', '"a"', '"b"', '"\\u0061"', '"\\""'];
  const pairs = ['"a":1', '"b":{}', '"a":[]', '"c":{"a":1}', '"__proto__":2', '"d":"}:{"', '"e":"\\\\"'];
  let state = 11;
  const random = (below: number): number => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
    return (state >>> 8) % below;
  };
  const pick = (list: readonly string[]): string => list[random(list.length)] ?? '';
  let accepted = 0;
  for (let count = 0; count < 20_000; count += 1) {
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

const REPEATS = 500_000;
// A parser that takes quadratic time needs more than ten minutes for each.
test.each([
  ['an unclosed string of escaped quotes', `{"${'\\"'.repeat(REPEATS)}`],
  ['an unclosed string of backslashes', `{"${'\\\\'.repeat(REPEATS)}`],
  ['strings without colons', `{${'"a" '.repeat(REPEATS)}`],
  ['white space behind a name', `{"a"${' '.repeat(2 * REPEATS)}`],
  ['brackets', '['.repeat(2 * REPEATS)],
])(
  '1 MB of malformed JSON is refused before the deadline: %s',
  async (_, text) => {
    const worker = new Worker(
      `const { parentPort, workerData } = require('node:worker_threads');
     import(workerData.module).then(({ parseStrictJson }) => {
       try { parseStrictJson(workerData.text); } catch (error) { parentPort.postMessage(error.message); }
     });`,
      {
        eval: true,
        execArgv: [],
        workerData: { module: new URL('../../src/lib/strict-json.ts', import.meta.url).href, text },
      },
    );
    onTestFinished(async () => void (await worker.terminate()));
    expect(await new Promise((resolve) => worker.once('message', resolve))).toBe('not valid JSON');
  },
  60_000,
);
