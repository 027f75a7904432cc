import { setPriority } from 'node:os';
import { parentPort, workerData } from 'node:worker_threads';
import { type CrlReadTask, readFilesAndPipes } from './crl-reader.ts';

/** The worker thread of `crl-files.ts`. */

// Requests come first on a busy machine. Only on Linux is this the priority of the thread and not of the process.
try {
  if (process.platform === 'linux') setPriority(5);
} catch {
  // Not permitted, for example by a systemd SystemCallFilter.
}
const results = await readFilesAndPipes(workerData as CrlReadTask);
const buffers = results.flatMap((result) =>
  result.kind === 'parsed' ? result.lists.flatMap(({ serials }) => [serials.bytes.buffer, serials.slots.buffer]) : [],
);
parentPort?.postMessage(results, buffers);
