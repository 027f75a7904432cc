import { closeSync, constants, openSync, readSync } from 'node:fs';
import { setTimeout as pause } from 'node:timers/promises';

const LIMIT_MS = 60_000;
const LOOK_MS = 20;
const PART_BYTES = 65_536;

/**
 * All bytes of a named pipe. Without blocking the thread: one that waits in the kernel for a writer cannot be terminated, and
 * keeps the process from exiting. Throws an `Error` whose message completes "<file> ...".
 */
export async function readPipe(file: string, most: number, tooLarge: () => Error): Promise<Buffer> {
  const end = performance.now() + LIMIT_MS;
  const pipe = openSync(file, constants.O_RDONLY | constants.O_NONBLOCK);
  try {
    const parts: Buffer[] = [];
    let length = 0;
    for (;;) {
      const part = Buffer.alloc(PART_BYTES);
      const size = readNow(pipe, part);
      // Nothing to read: before the first byte also when no writer has opened it yet.
      if (size === undefined || (size === 0 && length === 0)) {
        if (performance.now() > end) throw new Error(`did not end within ${LIMIT_MS / 1_000} s`);
        await pause(LOOK_MS);
        continue;
      }
      if (size === 0) return Buffer.concat(parts, length);
      length += size;
      if (length > most) throw tooLarge();
      parts.push(part.subarray(0, size));
    }
  } finally {
    closeSync(pipe);
  }
}

/** Undefined: a writer has it open, and has written nothing more yet. */
function readNow(pipe: number, into: Buffer): number | undefined {
  try {
    return readSync(pipe, into, 0, into.length, null);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EAGAIN') return undefined;
    throw error;
  }
}
