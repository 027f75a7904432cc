import type { LookupFunction } from 'node:net';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { createLookupQueue } from '../../src/lib/lookup-queue.ts';

/** A name server that responds on request of the test. */
function createSlowResolver() {
  const asked: { readonly name: string; readonly respond: () => void }[] = [];
  const lookup: LookupFunction = (name, _options, callback) =>
    void asked.push({ name, respond: () => callback(null, [{ address: '192.0.2.1', family: 4 }]) });
  return { asked, lookup };
}

test('names are resolved one after the other, and beyond the limit not at all', async () => {
  const { asked, lookup } = createSlowResolver();
  const resolve = promisify(createLookupQueue(lookup, 2));
  const pending = ['a', 'b', 'c'].map((name) => resolve(name, { all: true }));
  expect(asked.map(({ name }) => name)).toEqual(['a']);
  await expect(resolve('d', { all: true })).rejects.toMatchObject({ code: 'EAI_AGAIN' });
  asked[0]?.respond();
  expect(asked.map(({ name }) => name)).toEqual(['a', 'b']);
  const later = resolve('e', { all: true });
  asked[1]?.respond();
  asked[2]?.respond();
  asked[3]?.respond();
  expect(await Promise.all([...pending, later])).toHaveLength(4);
  expect(asked.map(({ name }) => name)).toEqual(['a', 'b', 'c', 'e']);
});

test('a failure does not stop the queue', async () => {
  const failing: LookupFunction = (_name, _options, callback) =>
    queueMicrotask(() => callback(Object.assign(new Error('unknown'), { code: 'ENOTFOUND' }), []));
  const resolve = promisify(createLookupQueue(failing, 2));
  for (const name of ['a', 'b', 'c'])
    await expect(resolve(name, {})).rejects.toMatchObject({ code: 'ENOTFOUND' });
});
