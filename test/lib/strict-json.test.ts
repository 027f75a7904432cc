import { Worker } from 'node:worker_threads';
import { expect, onTestFinished, test } from 'vitest';
import { parseStrictJson } from '../../src/lib/strict-json.ts';

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
])('the same name twice is refused: %s', (_, text) => {
  expect(() => parseStrictJson(text)).toThrow('the same name twice in one object');
});

test('more than 32 levels are refused, also 10,000', () => {
  for (const depth of [33, 10_000]) {
    expect(() => parseStrictJson(`${'['.repeat(depth)}${']'.repeat(depth)}`)).toThrow('nested too deeply');
    expect(() => parseStrictJson(`${'{"a":'.repeat(depth)}1${'}'.repeat(depth)}`)).toThrow(
      'nested too deeply',
    );
  }
});

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
