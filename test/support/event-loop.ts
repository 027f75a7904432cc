import { monitorEventLoopDelay } from 'node:perf_hooks';

export interface EventLoopStats {
  /** Milliseconds of CPU that this thread used in the longest event-loop iteration: other processes do not add to it. */
  readonly longestCpu: number;
  /** Milliseconds that the event loop was late at most, whatever the reason. */
  readonly longestDelay: number;
}

/** Watches the event loop while something runs. */
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
