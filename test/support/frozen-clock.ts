import { afterAll, beforeAll, vi } from 'vitest';

/**
 * Freezes `Date` in this file, so that only the test advances the clock of an in-process gateway, however slow the machine
 * is. Timers are not affected. Call it before registering other hooks.
 */
export function freezeClock(milliseconds = 0): void {
  beforeAll(() => {
    const now = Math.floor(Date.now() / 1_000) * 1_000 + milliseconds;
    vi.useFakeTimers({ toFake: ['Date'], now });
  });
  afterAll(() => void vi.useRealTimers());
}
