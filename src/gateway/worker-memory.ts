/**
 * How glibc hands out memory, for a process that holds many TLS connections. Node has 64 KiB to read into for each of them
 * and uses a page or two; what was once used of the heap stays resident, so that a while of connections coming and going
 * makes all of it resident, and none of it is ever given back. Blocks of that size get pages of their own instead,
 * which go with the connection. And how much room new objects of JavaScript have: nearly all are garbage when their
 * request ends, and by default they may take some 50 MB. Measured in docs/performance.md, "Memory".
 *
 * These are read once, before a program begins: the image and the systemd unit set them for the first process.
 * Elsewhere than on glibc those for glibc mean nothing.
 */
export const MEMORY_ENVIRONMENT = {
  MALLOC_ARENA_MAX: '2',
  MALLOC_MMAP_THRESHOLD_: '65536',
  // The end of the heap stays shorter than such a block, or it would be cut from there all the same.
  MALLOC_TOP_PAD_: '16384',
  MALLOC_TRIM_THRESHOLD_: '32768',
  NODE_OPTIONS: '--max-semi-space-size=8',
} as const;

const SEMI_SPACE = /--max[-_]semi[-_]space[-_]size\b/;

/** What is added to the environment of a worker: whatever the operator has set stays. */
export function workerEnvironment(
  env: Readonly<Record<string, string | undefined>>,
): Readonly<Record<string, string>> {
  const missing = Object.fromEntries(
    Object.entries(MEMORY_ENVIRONMENT).filter(([name]) => env[name] === undefined),
  );
  const { NODE_OPTIONS: given } = env;
  if (given === undefined || SEMI_SPACE.test(given)) return missing;
  // Options are one text: those of the operator and ours stand beside each other.
  return { ...missing, NODE_OPTIONS: `${given} ${MEMORY_ENVIRONMENT.NODE_OPTIONS}`.trim() };
}
