import { openSync, readSync } from 'node:fs';

export type EventLoopMonitor = ReturnType<typeof startEventLoopMonitor>;

interface EventLoopMonitorOptions {
  /** The longest tolerated stall. */
  readonly limitMs?: number;
  /** Time without a long stall until it counts as recovered. */
  readonly recoveryMs?: number;
  readonly onChange?: (overloaded: boolean, delayMs: number) => void;
  /** Total milliseconds that this thread was runnable without a CPU. */
  readonly readRunQueueWait?: () => number;
}

const CHECK_INTERVAL_MS = 100;

/** Detects stalls of the event loop, which delay every request of the process. */
export function startEventLoopMonitor({
  limitMs = 1_000,
  recoveryMs = 2_000,
  onChange,
  readRunQueueWait = createRunQueueWaitReader(),
}: EventLoopMonitorOptions = {}) {
  let checkedAt = performance.now();
  let runQueueWaitMs = readRunQueueWait();
  let overloadedUntil = 0;
  let reported = false;

  const report = (delayMs: number): void => {
    const overloaded = performance.now() < overloadedUntil;
    if (overloaded === reported) return;
    reported = overloaded;
    onChange?.(overloaded, Math.round(delayMs));
  };
  const check = (): void => {
    const now = performance.now();
    const runQueueWaitNow = readRunQueueWait();
    // By how much this check is late: at most one interval less than the stall.
    const stallMs = now - checkedAt - CHECK_INTERVAL_MS;
    // Time when other processes had the CPU is not our load. Some of it may be (our own threads and workers, a CPU limit),
    // so at most three quarters are deducted.
    const delayMs = Math.max(stallMs - (runQueueWaitNow - runQueueWaitMs), stallMs / 4);
    checkedAt = now;
    runQueueWaitMs = runQueueWaitNow;
    if (delayMs >= limitMs) overloadedUntil = now + recoveryMs;
    report(delayMs);
  };
  const timer = setInterval(check, CHECK_INTERVAL_MS).unref();
  return {
    /** A stall longer than the limit happened within the recovery time. */
    isOverloaded(): boolean {
      // Requests that waited during a stall may run before the timer.
      if (performance.now() - checkedAt - CHECK_INTERVAL_MS >= limitMs) check();
      return performance.now() < overloadedUntil;
    },
    stop: (): void => clearInterval(timer),
  };
}

/** From /proc/self/schedstat (Documentation/scheduler/sched-stats.rst); 0 where it does not exist. */
export function createRunQueueWaitReader(): () => number {
  let file: number;
  try {
    file = openSync('/proc/self/schedstat', 'r');
  } catch {
    return () => 0;
  }
  const buffer = Buffer.alloc(128);
  return () => {
    const length = readSync(file, buffer, 0, buffer.length, 0);
    return Number(buffer.toString('latin1', 0, length).split(' ')[1]) / 1e6 || 0;
  };
}
