import { expect, test } from 'vitest';
import { ByteQueue } from '../../src/http2/byte-queue.ts';
import { createBufferPool, type PooledBuffer } from '../../src/lib/buffer-pool.ts';
import { randomBelow } from '../fuzz/mutations.ts';

test('the bytes come out in the order in which they were added, whatever the sizes of the parts', () => {
  for (let seed = 1; seed <= 60; seed += 1) {
    const below = randomBelow(seed);
    const queue = new ByteQueue();
    let expected = Buffer.alloc(0);
    let written = 0;
    const createPart = (): Buffer => {
      const size = [0, 1, 5, 500, 4_095, 4_096, 9_000][below(7)] ?? 0;
      return Buffer.from(Array.from({ length: size }, () => written++ & 0xff));
    };
    for (let step = 0; step < 80; step += 1) {
      switch (below(6)) {
        case 0:
        case 1: {
          const part = createPart();
          const source = Buffer.concat([Buffer.from([1, 2]), part, Buffer.from([3])]);
          queue.append(source, 2, 2 + part.length);
          // It was copied.
          source.fill(0xee);
          expected = Buffer.concat([expected, part]);
          break;
        }
        case 2: {
          const part = createPart();
          queue.add(Buffer.from(part));
          expected = Buffer.concat([expected, part]);
          break;
        }
        case 3:
        case 4: {
          const { first } = queue;
          expect(first.equals(expected.subarray(0, first.length))).toBe(true);
          expect(first.length > 0).toBe(expected.length > 0);
          const size = below(first.length + 1);
          queue.consume(size);
          expected = expected.subarray(size);
          break;
        }
        default:
          if (below(8) === 0) {
            expect(queue.take().equals(expected)).toBe(true);
            expected = Buffer.alloc(0);
          }
      }
      expect(queue.length).toBe(expected.length);
    }
    expect(queue.take().equals(expected)).toBe(true);
    queue.clear();
    expect([queue.length, queue.first.length]).toEqual([0, 0]);
  }
});

/** A pool that overwrites each buffer that is released, and records how often that was. */
function createRecordingPool() {
  const pool = createBufferPool([1_024, 8_192], 0);
  const releases = new Map<PooledBuffer, number>();
  return {
    acquire(size: number): PooledBuffer | undefined {
      const real = pool.acquire(size);
      if (real === undefined) return undefined;
      const pooled: PooledBuffer = {
        bytes: real.bytes,
        release() {
          releases.set(pooled, (releases.get(pooled) ?? 0) + 1);
          real.bytes.fill(0xee);
          real.release();
        },
      };
      releases.set(pooled, 0);
      return pooled;
    },
    /** How often each buffer was released. */
    releases: (): number[] => [...releases.values()],
  };
}

test('a buffer of the pool is released once its bytes were consumed', () => {
  const pool = createRecordingPool();
  const queue = new ByteQueue(pool);
  const bytes = Buffer.alloc(5_000, 'a');
  queue.append(bytes, 0, 1_024);
  queue.append(bytes, 0, 3_000);
  expect(pool.releases()).toEqual([0, 0]);
  queue.consume(1_023);
  expect(pool.releases()).toEqual([0, 0]);
  queue.consume(1);
  expect(pool.releases()).toEqual([1, 0]);
  expect(queue.first.toString()).toBe('a'.repeat(3_000));
  queue.consume(3_000);
  expect(pool.releases()).toEqual([1, 1]);
  queue.clear();
  queue.append(bytes, 0, 10);
  expect(pool.releases()).toEqual([1, 1, 0]);
});

test('the buffers that are left are released once when the queue is cleared', () => {
  const pool = createRecordingPool();
  const queue = new ByteQueue(pool);
  const bytes = Buffer.alloc(8_192, 'a');
  for (let count = 0; count < 4; count += 1) queue.append(bytes, 0, bytes.length);
  queue.consume(bytes.length);
  queue.consume(100);
  queue.clear();
  expect([queue.length, pool.releases()]).toEqual([0, [1, 1, 1, 1]]);
  queue.clear();
  expect(pool.releases()).toEqual([1, 1, 1, 1]);
});

test('whatever is added and consumed, bytes of the pool are valid until then, and each buffer is released once', () => {
  for (let seed = 1; seed <= 10; seed += 1) {
    const below = randomBelow(seed);
    const pool = createRecordingPool();
    const queue = new ByteQueue(pool);
    let expected = Buffer.alloc(0);
    for (let step = 0; step < 80; step += 1) {
      const action = below(20);
      if (action < 9) {
        // The largest is too large for the pool.
        const size = [1, 100, 1_024, 3_000, 8_192, 9_000][below(6)] ?? 0;
        const part = Buffer.alloc(size, `${step} `);
        if (below(3) === 0) queue.add(part);
        else queue.append(part, 0, size);
        expected = Buffer.concat([expected, part]);
      } else if (action < 19) {
        const { first } = queue;
        expect(first.equals(expected.subarray(0, first.length))).toBe(true);
        const size = below(2) === 0 ? first.length : below(first.length + 1);
        queue.consume(size);
        expected = expected.subarray(size);
      } else {
        queue.clear();
        expected = Buffer.alloc(0);
      }
      expect(queue.length).toBe(expected.length);
      expect(Math.max(0, ...pool.releases())).toBeLessThanOrEqual(1);
      if (queue.length === 0) expect(pool.releases().every((count) => count === 1)).toBe(true);
    }
    queue.clear();
    expect(pool.releases().every((count) => count === 1)).toBe(true);
  }
});
