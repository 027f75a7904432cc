import { expect, test } from 'vitest';
import { createHiddenProperty } from '../../src/lib/hidden-property.ts';

test('each field has a value of its own, which can be replaced', () => {
  const [first, second] = [createHiddenProperty<object, number>(), createHiddenProperty<object, number>()];
  const [one, other] = [{ a: 1 }, Object.freeze({ a: 1 })];
  first.set(one, 1);
  first.set(other, 2);
  second.set(one, 3);
  first.set(one, 4);
  expect([first.get(one), first.get(other), second.get(one), second.get(other)]).toEqual([4, 2, 3, undefined]);
});

test('the object does not show it, and a copy does not have it', () => {
  const field = createHiddenProperty<object, string>();
  const object = { a: 1 };
  field.set(object, 'secret');
  expect(Reflect.ownKeys(object)).toEqual(['a']);
  expect(JSON.stringify(object)).toBe('{"a":1}');
  expect(field.get({ ...object })).toBeUndefined();
  expect(field.get(structuredClone(object))).toBeUndefined();
  expect(field.get(Object.create(object) as object)).toBeUndefined();
});
