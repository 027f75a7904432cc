import { describe, expect, test } from 'vitest';
import { createBufferPool } from '../../src/lib/buffer-pool.ts';
import { testLongResponses, testStalledReaders } from './long-responses.ts';

describe.each(['plain', 'TLS'] as const)('to clients over %s', (transport) => {
  testLongResponses(transport, 150);
  testStalledReaders(transport, 3);
});

describe('the buffer pool', () => {
  test('X04 reuses a buffer only after it was written, and never after a write error', () => {
    const buffers = createBufferPool();
    const first = buffers.acquire(10_000);
    const second = buffers.acquire(10_000);
    expect(first).toBeDefined();
    expect(second?.bytes).not.toBe(first?.bytes);
    first?.release();
    expect(buffers.acquire(10_000)?.bytes).toBe(first?.bytes);
    second?.release(new Error('the client has left'));
    expect(buffers.acquire(10_000)?.bytes).not.toBe(second?.bytes);
  });

  test('X04 returns a buffer at least as large as requested, or none', () => {
    const buffers = createBufferPool();
    for (const size of [4_096, 65_536, 73_728])
      expect(buffers.acquire(size)?.bytes.length).toBeGreaterThanOrEqual(size);
    expect(buffers.acquire(100)).toBeUndefined();
    expect(buffers.acquire(73_729)).toBeUndefined();
  });

  test('X04 stays bounded when many buffers are returned at once', () => {
    const buffers = createBufferPool();
    const leases = Array.from({ length: 500 }, () => buffers.acquire(70_000));
    for (const lease of leases) lease?.release();
    const known = new Set(leases.map((lease) => lease?.bytes));
    const reacquired = Array.from({ length: 500 }, () => buffers.acquire(70_000)?.bytes);
    const reusedCount = reacquired.filter((bytes) => known.has(bytes)).length;
    expect(reusedCount).toBeGreaterThan(0);
    expect(reusedCount * 73_728).toBeLessThan(6_400_000);
  });

  test('X04 returns at most three times the requested size', () => {
    const buffers = createBufferPool();
    for (let size = 4_096; size <= 73_728; size += 512)
      expect((buffers.acquire(size)?.bytes.length ?? Infinity) / size).toBeLessThanOrEqual(3);
  });
});
