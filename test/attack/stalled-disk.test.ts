import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { Fault } from '../../src/ports/fault.ts';
import { WriteQueue } from '../../src/stores/embedded/write-queue.ts';

describe('a stalled disk', () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  test('blocks new grants only until it recovers, also if only refreshes were affected by the stall', async () => {
    const queue = new WriteQueue({ ensureSpace: async () => true });
    const flushed = Promise.withResolvers<boolean>();
    const stalled = queue.write({ purpose: 'update', bytes: 1, change: () => flushed.promise });
    const refused = expect(stalled).rejects.toThrow(Fault);
    await vi.advanceTimersByTimeAsync(10_001);
    await refused;
    flushed.resolve(true);
    await vi.advanceTimersByTimeAsync(1_000);
    const write = queue.write({ purpose: 'new', bytes: 1, change: async () => true });
    const written = expect(write).resolves.toBe(true);
    await vi.advanceTimersByTimeAsync(1_000);
    await written;
  });

  test('fails a write within 10 s if the file cannot be extended', async () => {
    const queue = new WriteQueue({ ensureSpace: () => new Promise<boolean>(() => {}) });
    const refused = expect(queue.write({ purpose: 'update', bytes: 1, change: async () => true })).rejects.toThrow(
      Fault,
    );
    await vi.advanceTimersByTimeAsync(10_001);
    await refused;
  });

  test('fails a write within 10 s that is queued behind slow flushes, each shorter than 10 s', async () => {
    const queue = new WriteQueue({ ensureSpace: async () => true });
    const slow = (): Promise<boolean> => new Promise((resolve) => setTimeout(resolve, 6_000, true));
    const first = queue.write({ purpose: 'update', bytes: 1, change: slow });
    await vi.advanceTimersByTimeAsync(1);
    const second = queue.write({ purpose: 'update', bytes: 1, change: slow });
    const refused = expect(second).rejects.toThrow(/did not confirm a write in 10 s/);
    await vi.advanceTimersByTimeAsync(6_000);
    await expect(first).resolves.toBe(true);
    const third = queue.write({ purpose: 'update', bytes: 1, change: async () => true });
    const written = expect(third).resolves.toBe(true);
    await vi.advanceTimersByTimeAsync(4_500);
    await refused;
    // The flush itself has not timed out, so other writes continue.
    await vi.advanceTimersByTimeAsync(2_000);
    await written;
  });
});
