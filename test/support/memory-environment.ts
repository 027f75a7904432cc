/** The memory settings of bin/gatehouse, for a process that is started without it. test/deploy/launcher.test.ts compares both. */
export const MEMORY_ENVIRONMENT = {
  MALLOC_ARENA_MAX: '2',
  MALLOC_MMAP_THRESHOLD_: '65536',
  MALLOC_TOP_PAD_: '16384',
  MALLOC_TRIM_THRESHOLD_: '32768',
  NODE_OPTIONS: '--max-semi-space-size=8',
} as const;
