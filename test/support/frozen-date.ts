import { afterAll, beforeAll, vi } from 'vitest';

/**
 * Stops `Date` for all tests of a file, so that only `house.clock.advance` moves the time that tokens, codes and retry
 * windows are judged by: a busy machine cannot use up seconds of it. Timers and `performance.now()` go on.
 */
export function freezeDate(): void {
  beforeAll(() => void vi.useFakeTimers({ toFake: ['Date'] }));
  afterAll(() => void vi.useRealTimers());
}
