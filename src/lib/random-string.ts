import { randomFillSync } from 'node:crypto';

const pool = Buffer.alloc(6_144);
let poolAt = pool.length;

/** Random bytes, encoded. Taken from a pool: filling it at once costs a fraction. */
export function randomString(bytes: number, encoding: 'hex' | 'base64url'): string {
  if (poolAt + bytes > pool.length) {
    randomFillSync(pool);
    poolAt = 0;
  }
  poolAt += bytes;
  return pool.toString(encoding, poolAt - bytes, poolAt);
}

/** Slices strings of one length off a batch. Keep batches small: a slice that is retained retains its batch. */
export function createBatchedGenerator(length: number, generateBatch: () => string): () => string {
  let batch = '';
  let at = 0;
  return () => {
    if (at === batch.length) {
      batch = generateBatch();
      at = 0;
    }
    at += length;
    return batch.slice(at - length, at);
  };
}
