import { setPriority } from 'node:os';
import { parentPort, workerData } from 'node:worker_threads';
import { type RevocationTask, readFilesAndPipes } from './revocation-read.ts';

/** The worker thread of `revocation-files.ts`: reads once, sends what it has read, and ends. */

// Requests go first where CPUs are few. On Linux the priority is that of this thread; elsewhere it is that of the process.
try {
  if (process.platform === 'linux') setPriority(5);
} catch {
  // Not allowed, for example by a systemd SystemCallFilter: then without.
}
const readings = await readFilesAndPipes(workerData as RevocationTask);
const buffers = readings.flatMap((reading) =>
  reading.kind === 'read'
    ? reading.lists.flatMap(({ serials }) => [serials.bytes.buffer, serials.slots.buffer])
    : [],
);
parentPort?.postMessage(readings, buffers);
