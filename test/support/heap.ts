import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

/** Heap bytes in use after a full garbage collection. */
export function heapAfterCollection(): number {
  collect();
  return process.memoryUsage().heapUsed;
}
