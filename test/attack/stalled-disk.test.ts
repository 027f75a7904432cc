import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { Fault } from '../../src/ports/fault.ts';
import { WriteQueue } from '../../src/stores/embedded/write-queue.ts';

describe('a disk that stalls', () => {
  beforeEach(() => void vi.useFakeTimers());
  afterEach(() => void vi.useRealTimers());

  test('blocks new grants only until it recovers, also when only refreshes met the stall', async () => {
    const line = new WriteQueue({ ensureSpace: async () => true });
    const flushed = Promise.withResolvers<boolean>();
    const stalled = line.write({ purpose: 'update', bytes: 1, change: () => flushed.promise });
    const refused = expect(stalled).rejects.toThrow(Fault);
    await vi.advanceTimersByTimeAsync(10_001);
    await refused;
    flushed.resolve(true);
    await vi.advanceTimersByTimeAsync(1_000);
    const write = line.write({ purpose: 'new', bytes: 1, change: async () => true });
    const written = expect(write).resolves.toBe(true);
    await vi.advanceTimersByTimeAsync(1_000);
    await written;
  });

  test('fails a write within 10 s when it hangs while the file is being extended', async () => {
    const line = new WriteQueue({ ensureSpace: () => new Promise<boolean>(() => {}) });
    const refused = expect(
      line.write({ purpose: 'update', bytes: 1, change: async () => true }),
    ).rejects.toThrow(Fault);
    await vi.advanceTimersByTimeAsync(10_001);
    await refused;
  });

  test('fails a write within 10 s that waits behind slow flushes, each shorter than that', async () => {
    const line = new WriteQueue({ ensureSpace: async () => true });
    const slow = (): Promise<boolean> => new Promise((resolve) => setTimeout(resolve, 6_000, true));
    const first = line.write({ purpose: 'update', bytes: 1, change: slow });
    await vi.advanceTimersByTimeAsync(1);
    const second = line.write({ purpose: 'update', bytes: 1, change: slow });
    const refused = expect(second).rejects.toThrow(/did not confirm a write in 10 s/);
    await vi.advanceTimersByTimeAsync(6_000);
    await expect(first).resolves.toBe(true);
    const third = line.write({ purpose: 'update', bytes: 1, change: async () => true });
    const written = expect(third).resolves.toBe(true);
    await vi.advanceTimersByTimeAsync(4_500);
    await refused;
    // The flush itself is not over its time: others go on.
    await vi.advanceTimersByTimeAsync(2_000);
    await written;
  });
});
