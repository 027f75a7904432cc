import { expect, test } from 'vitest';
import { testManyRevocations } from './many-revocations.ts';

test('V12 a million revoked grants use less than 25 MB, are all found, and are removed after they expire', () => {
  expect(testManyRevocations(1_000_000)).toBeLessThan(25_000_000);
});
