import { afterAll, beforeAll, vi } from 'vitest';

/**
 * Stops `Date` in this file, so that the clock of a gateway in this process moves only where a test moves it, however
 * slow the machine is. Timers run on. Called before other hooks.
 */
export function freezeClock(milliseconds = 0): void {
  beforeAll(() => {
    const now = Math.floor(Date.now() / 1_000) * 1_000 + milliseconds;
    vi.useFakeTimers({ toFake: ['Date'], now });
  });
  afterAll(() => void vi.useRealTimers());
}
