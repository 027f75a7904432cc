import { expect, test } from 'vitest';
import { manyRevocations } from './many-revocations.ts';

test('V12 a million revoked grants take less than 25 MB, are all found, and are gone after their time', () => {
  expect(manyRevocations(1_000_000)).toBeLessThan(25_000_000);
});
