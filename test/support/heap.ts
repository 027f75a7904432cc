import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

/** Bytes that are still held when all garbage has gone. */
export function heapAfterCollection(): number {
  collect();
  return process.memoryUsage().heapUsed;
}
