/**
 * glibc and V8 memory settings for processes with many TLS connections. Node allocates a 64 KiB read buffer per connection
 * and uses a page or two of it; on the heap, buffers of past connections stay resident. Blocks of that size get their own
 * mapping instead, which is released with the connection. The young generation is limited, because nearly all objects die
 * with their request. Measured in docs/decisions/0040-performance-work.md, "Memory".
 *
 * They are read at process start: the image and the systemd unit set them for the first process.
 */
export const MEMORY_ENVIRONMENT = {
  MALLOC_ARENA_MAX: '2',
  MALLOC_MMAP_THRESHOLD_: '65536',
  // Smaller than such a block, which would otherwise be taken from the top of the heap.
  MALLOC_TOP_PAD_: '16384',
  MALLOC_TRIM_THRESHOLD_: '32768',
  NODE_OPTIONS: '--max-semi-space-size=8',
} as const;

const SEMI_SPACE_OPTION = /--max[-_]semi[-_]space[-_]size\b/;

/** Variables to add for a worker; values set by the operator are kept. */
export function createWorkerEnvironment(
  env: Readonly<Record<string, string | undefined>>,
): Readonly<Record<string, string>> {
  const missing = Object.fromEntries(Object.entries(MEMORY_ENVIRONMENT).filter(([name]) => env[name] === undefined));
  const { NODE_OPTIONS: nodeOptions } = env;
  if (nodeOptions === undefined || SEMI_SPACE_OPTION.test(nodeOptions)) return missing;
  return { ...missing, NODE_OPTIONS: `${nodeOptions} ${MEMORY_ENVIRONMENT.NODE_OPTIONS}`.trim() };
}
