import { monitorEventLoopDelay } from 'node:perf_hooks';

export interface EventLoopStats {
  /** Milliseconds of CPU time of the longest event-loop iteration; independent of other processes. */
  readonly longestCpu: number;
  /** Longest event-loop delay in milliseconds, including waits for a CPU. */
  readonly longestDelay: number;
}

/** Measures the event loop while `run` runs. */
export async function watchEventLoop(run: () => Promise<unknown>): Promise<EventLoopStats> {
  const delay = monitorEventLoopDelay({ resolution: 1 });
  let longest = 0;
  let isRunning = true;
  let before = process.threadCpuUsage();
  const iterate = (): void => {
    const { user, system } = process.threadCpuUsage(before);
    longest = Math.max(longest, user + system);
    before = process.threadCpuUsage();
    if (isRunning) setImmediate(iterate);
  };
  setImmediate(iterate);
  delay.enable();
  try {
    await run();
  } finally {
    isRunning = false;
    delay.disable();
  }
  return { longestCpu: longest / 1_000, longestDelay: delay.max / 1e6 };
}
