import type { LookupFunction } from 'node:net';
import { promisify } from 'node:util';
import { afterEach, expect, test, vi } from 'vitest';
import { createLookupQueue } from '../../src/lib/lookup-queue.ts';

const WAIT_MS = 5_000;

afterEach(() => void vi.useRealTimers());

/** A name server that responds on request of the test. */
function createSlowResolver() {
  const asked: { readonly name: string; readonly respond: () => void }[] = [];
  const lookup: LookupFunction = (name, _options, callback) =>
    void asked.push({ name, respond: () => callback(null, [{ address: '192.0.2.1', family: 4 }]) });
  return { asked, lookup };
}

test('names are resolved one after the other, and beyond the limit not at all', async () => {
  const { asked, lookup } = createSlowResolver();
  const resolve = promisify(createLookupQueue(lookup, 2, WAIT_MS));
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
  const resolve = promisify(createLookupQueue(failing, 2, WAIT_MS));
  for (const name of ['a', 'b', 'c']) await expect(resolve(name, {})).rejects.toMatchObject({ code: 'ENOTFOUND' });
});

test('lookups of one name share a result; other options are another lookup', async () => {
  const { asked, lookup } = createSlowResolver();
  const resolve = promisify(createLookupQueue(lookup, 4, WAIT_MS));
  const pending = [{ all: true }, { all: true }, { all: true }, { all: true, family: 4 as const }].map((options) =>
    resolve('a', options),
  );
  expect(asked).toHaveLength(1);
  asked[0]?.respond();
  expect(asked).toHaveLength(2);
  asked[1]?.respond();
  expect(await Promise.all(pending)).toHaveLength(4);
  expect(asked.map(({ name }) => name)).toEqual(['a', 'a']);
});

test('one name cannot collect any number of callers', async () => {
  const { lookup } = createSlowResolver();
  const resolve = promisify(createLookupQueue(lookup, 2, WAIT_MS));
  void resolve('a', {});
  void resolve('a', {});
  await expect(resolve('a', {})).rejects.toMatchObject({ code: 'EAI_AGAIN' });
});

test('a lookup that has waited longer than its caller is not started, and leaves its place to another', async () => {
  vi.useFakeTimers({ toFake: ['performance'] });
  const { asked, lookup } = createSlowResolver();
  const resolve = promisify(createLookupQueue(lookup, 2, WAIT_MS));
  const first = resolve('a', {});
  const abandoned = ['b', 'c'].map((name) => resolve(name, {}));
  vi.advanceTimersByTime(WAIT_MS);
  const later = resolve('d', {});
  for (const one of abandoned) await expect(one).rejects.toMatchObject({ code: 'EAI_AGAIN' });
  const last = resolve('e', {});
  asked[0]?.respond();
  asked[1]?.respond();
  asked[2]?.respond();
  await Promise.all([first, later, last]);
  expect(asked.map(({ name }) => name)).toEqual(['a', 'd', 'e']);
});

test('a lookup that throws does not stop the queue', async () => {
  const throwing: LookupFunction = () => {
    throw Object.assign(new TypeError('invalid'), { code: 'ERR_INVALID_ARG_VALUE' });
  };
  const resolve = promisify(createLookupQueue(throwing, 2, WAIT_MS));
  for (const name of ['a', 'b', 'c', 'd'])
    await expect(resolve(name, {})).rejects.toMatchObject({ code: 'ERR_INVALID_ARG_VALUE' });
});
