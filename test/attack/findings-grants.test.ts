import { describe, expect, test, vi } from 'vitest';
import { redactText } from '../../src/observability/redact.ts';
import { Fault } from '../../src/ports/fault.ts';
import { writeLine } from '../../src/stores/embedded-writes.ts';
import { openHouse } from '../support/house.ts';

describe('what a stranger can make the house do', () => {
  test('a client_id of 16 KiB is neither searched for long nor written to the log as it is', async () => {
    const evil = 'a.'.repeat(8_000);
    const spent = Array.from({ length: 3 }, () => {
      const before = performance.now();
      redactText(evil);
      return performance.now() - before;
    });
    // It was 300 ms, in which nobody else was served.
    expect(Math.min(...spent)).toBeLessThan(60);

    await using house = await opened();
    await house.post('/Authorize/Token', { client_id: evil, refresh_token: 'x' });
    await vi.waitFor(() => expect(house.log.some(({ event }) => event === 'request')).toBe(true));
    for (const line of house.log) expect(JSON.stringify(line).length).toBeLessThan(2_048);
  });
});

describe('a disk that stalls and comes back', () => {
  const never = new Promise<boolean>(() => {});

  test('a stall that only refreshes met does not stop new grants for ever', async () => {
    vi.useFakeTimers();
    try {
      const line = writeLine(() => 0, { fits: async () => true });
      const flushed = Promise.withResolvers<boolean>();
      const stalled = line.write({ purpose: 'upkeep', bytes: 1, change: () => flushed.promise });
      const refused = expect(stalled).rejects.toThrow(Fault);
      await vi.advanceTimersByTimeAsync(10_001);
      await refused;
      flushed.resolve(true);
      await vi.advanceTimersByTimeAsync(1_000);
      const write = line.write({ purpose: 'new', bytes: 1, change: async () => true });
      const answered = expect(write).resolves.toBe(true);
      await vi.advanceTimersByTimeAsync(1_000);
      await answered;
    } finally {
      vi.useRealTimers();
    }
  });

  test('a disk that hangs while the file is made longer keeps nobody waiting without end', async () => {
    vi.useFakeTimers();
    try {
      const line = writeLine(() => 0, { fits: () => never });
      const refused = expect(
        line.write({ purpose: 'upkeep', bytes: 1, change: async () => true }),
      ).rejects.toThrow(Fault);
      await vi.advanceTimersByTimeAsync(10_001);
      await refused;
    } finally {
      vi.useRealTimers();
    }
  });
});

async function opened(...change: Parameters<typeof openHouse>) {
  const house = await openHouse(...change);
  return Object.assign(house, { [Symbol.asyncDispose]: () => house.close() });
}
