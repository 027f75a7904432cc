import { describe, expect, test } from 'vitest';
import { lentBuffers } from '../../src/proxy/fast/lent-buffers.ts';
import { testLongResponses, testStalledReaders } from './long-responses.ts';

describe.each(['plain', 'TLS'] as const)('to clients over %s', (transport) => {
  testLongResponses(transport, 150);
  testStalledReaders(transport, 3);
});

describe('the buffer pool', () => {
  test('X04 reuses a buffer only after it was written, and never after a write error', () => {
    const buffers = lentBuffers();
    const first = buffers.borrow(10_000);
    const second = buffers.borrow(10_000);
    expect(first).toBeDefined();
    expect(second?.bytes).not.toBe(first?.bytes);
    first?.written();
    expect(buffers.borrow(10_000)?.bytes).toBe(first?.bytes);
    second?.written(new Error('the client has left'));
    expect(buffers.borrow(10_000)?.bytes).not.toBe(second?.bytes);
  });

  test('X04 returns a buffer at least as large as requested, or none', () => {
    const buffers = lentBuffers();
    for (const size of [4_096, 65_536, 73_728])
      expect(buffers.borrow(size)?.bytes.length).toBeGreaterThanOrEqual(size);
    expect(buffers.borrow(100)).toBeUndefined();
    expect(buffers.borrow(73_729)).toBeUndefined();
  });

  test('X04 stays bounded when many buffers are returned at once', () => {
    const buffers = lentBuffers();
    const lent = Array.from({ length: 500 }, () => buffers.borrow(70_000));
    for (const loan of lent) loan?.written();
    const known = new Set(lent.map((loan) => loan?.bytes));
    const again = Array.from({ length: 500 }, () => buffers.borrow(70_000)?.bytes);
    const kept = again.filter((bytes) => known.has(bytes)).length;
    expect(kept).toBeGreaterThan(0);
    expect(kept * 73_728).toBeLessThan(6_400_000);
  });

  test('X04 returns at most three times the requested size', () => {
    const buffers = lentBuffers();
    for (let size = 4_096; size <= 73_728; size += 512)
      expect((buffers.borrow(size)?.bytes.length ?? Infinity) / size).toBeLessThanOrEqual(3);
  });
});
