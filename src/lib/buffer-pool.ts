export interface PooledBuffer {
  readonly bytes: Buffer;
  /** The callback of the write. A buffer whose write failed, or never called back, is not reused. */
  readonly release: (error?: Error | null) => void;
}

export type BufferPool = ReturnType<typeof createBufferPool>;

/** The largest is for one read of a long response and its framing. A stalled client holds at most three times its share. */
const BUFFER_SIZES = [8_192, 24_576, 73_728] as const;
const MIN_POOLED_BYTES = 4_096;
/** For each size. */
const MAX_IDLE_BYTES = 6_291_456;

/**
 * Reuses buffers for writes. New off-heap memory for each long response makes V8 scan its heap again and again: with 100 KiB
 * each, a third of all time. `sizes`: of the buffers, in ascending order. `minBytes`: less is not pooled.
 */
export function createBufferPool(sizes: readonly number[] = BUFFER_SIZES, minBytes = MIN_POOLED_BYTES) {
  const buckets = sizes.map((size) => ({ size, idle: [] as PooledBuffer[] }));
  const allocate = (size: number, idle: PooledBuffer[]): PooledBuffer => {
    const pooled: PooledBuffer = {
      bytes: Buffer.allocUnsafeSlow(size),
      release(error) {
        if ((error === undefined || error === null) && idle.length * size < MAX_IDLE_BYTES) idle.push(pooled);
      },
    };
    return pooled;
  };
  return {
    /** At least this many bytes; undefined if pooling is not worth it, or the size is too large. */
    acquire(requested: number): PooledBuffer | undefined {
      if (requested < minBytes) return undefined;
      for (const { size, idle } of buckets) if (requested <= size) return idle.pop() ?? allocate(size, idle);
      return undefined;
    },
  };
}
