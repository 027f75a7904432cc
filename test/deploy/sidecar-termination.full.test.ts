import { expect, test } from 'vitest';
import { terminatePod } from './sidecar-termination.ts';

test('A8 a native sidecar that outlives its application by seconds loses no request', async () => {
  expect(await terminatePod(true)).toEqual([]);
}, 120_000);

test('A8 a sidecar that ends together with its application loses no request', async () => {
  expect(await terminatePod(false)).toEqual([]);
}, 120_000);
