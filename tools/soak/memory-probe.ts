import { renameSync, writeFileSync } from 'node:fs';

/**
 * Loaded into the program under test with `--import` and `--expose-gc`: on SIGWINCH, it runs a full garbage collection and
 * writes the memory that is still in use to a file. Leaks show only in these figures.
 */
export interface Held {
  readonly heapBytes: number;
  readonly arrayBufferBytes: number;
  /** Memory of objects outside the JavaScript heap, including array buffers. */
  readonly externalBytes: number;
  /** Active handles and requests of the event loop, by type. */
  readonly handles: Readonly<Record<string, number>>;
}

export const PROBE_FILE = 'MEMORY_PROBE_FILE';

const file = process.env[PROBE_FILE];
const collect = globalThis.gc;
if (file !== undefined && collect !== undefined)
  process.on('SIGWINCH', () => {
    // Objects freed by the first collection may reference others until they are finalized.
    collect();
    setTimeout(() => {
      collect();
      const { heapUsed, arrayBuffers, external } = process.memoryUsage();
      const handles: Record<string, number> = {};
      for (const type of process.getActiveResourcesInfo()) handles[type] = (handles[type] ?? 0) + 1;
      const held: Held = {
        heapBytes: heapUsed,
        arrayBufferBytes: arrayBuffers,
        externalBytes: external,
        handles,
      };
      // Renamed atomically, so that the file is never read incomplete.
      writeFileSync(`${file}.new`, JSON.stringify(held));
      renameSync(`${file}.new`, file);
    }, 100);
  });
