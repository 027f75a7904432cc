import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

/** Bytes of buffers that are still held when all garbage has gone. */
export function buffersAfterCollection(): number {
  collect();
  // Buffers are freed in another thread; the next collection waits for it.
  collect();
  return process.memoryUsage().arrayBuffers;
}

/** Heap bytes in use after a full garbage collection. */
export function heapAfterCollection(): number {
  collect();
  return process.memoryUsage().heapUsed;
}
