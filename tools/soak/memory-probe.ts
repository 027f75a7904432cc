import { renameSync, writeFileSync } from 'node:fs';

/**
 * Loaded into the program under test with `--import`, beside `--expose-gc`: on SIGWINCH it collects all garbage and
 * leaves in a file what is held then. What the program holds without need shows only after that.
 */
export interface Held {
  readonly heapBytes: number;
  readonly arrayBufferBytes: number;
  /** Memory outside the JavaScript heap that its objects hold; array buffers included. */
  readonly externalBytes: number;
}

export const PROBE_FILE = 'MEMORY_PROBE_FILE';

const file = process.env[PROBE_FILE];
const collect = globalThis.gc;
if (file !== undefined && collect !== undefined)
  process.on('SIGWINCH', () => {
    // What the first one frees may hold on to more until it is finalised.
    collect();
    setTimeout(() => {
      collect();
      const { heapUsed, arrayBuffers, external } = process.memoryUsage();
      const held: Held = { heapBytes: heapUsed, arrayBufferBytes: arrayBuffers, externalBytes: external };
      // Renamed in one step, so that a reader never finds it incomplete.
      writeFileSync(`${file}.new`, JSON.stringify(held));
      renameSync(`${file}.new`, file);
    }, 100);
  });
