import { closeSync, constants, openSync, readSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { describeTooLarge } from '../lib/read-file.ts';

const TIMEOUT_MS = 60_000;
const POLL_INTERVAL_MS = 20;
const CHUNK_BYTES = 65_536;

/**
 * Reads a named pipe to its end without blocking: a thread that waits in the kernel for a writer cannot be terminated, and
 * keeps the process from exiting. Throws an `Error` whose message completes "<file> ...".
 */
export async function readPipe(file: string, maxBytes: number): Promise<Buffer> {
  const deadline = performance.now() + TIMEOUT_MS;
  const pipe = openSync(file, constants.O_RDONLY | constants.O_NONBLOCK);
  try {
    const parts: Buffer[] = [];
    let length = 0;
    for (;;) {
      const part = Buffer.alloc(CHUNK_BYTES);
      const size = readAvailable(pipe, part);
      // Before the first byte, 0 may also mean that no writer has opened the pipe yet.
      if (size === undefined || (size === 0 && length === 0)) {
        if (performance.now() > deadline) throw new Error(`did not end within ${TIMEOUT_MS / 1_000} s`);
        await sleep(POLL_INTERVAL_MS);
        continue;
      }
      if (size === 0) return Buffer.concat(parts, length);
      length += size;
      if (length > maxBytes) throw new Error(describeTooLarge(maxBytes));
      parts.push(part.subarray(0, size));
    }
  } finally {
    closeSync(pipe);
  }
}

/** Undefined if a writer has the pipe open but has written nothing more. */
function readAvailable(pipe: number, into: Buffer): number | undefined {
  try {
    return readSync(pipe, into, 0, into.length, null);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EAGAIN') return undefined;
    throw error;
  }
}
