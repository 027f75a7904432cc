import { describe, expect, test } from 'vitest';
import { terminatePod } from './sidecar-termination.ts';

describe.each([true, 'node'] as const)('A8 HTTP/1.1 and listen.http2: %s', (http2) => {
  test('a native sidecar that outlives its application by seconds loses no request', async () => {
    expect(await terminatePod({ isNative: true, http2 })).toEqual([]);
  }, 120_000);

  test('a sidecar that ends together with its application loses no request', async () => {
    expect(await terminatePod({ isNative: false, http2 })).toEqual([]);
  }, 120_000);
});
