import { readdir } from 'node:fs/promises';
import { monitorEventLoopDelay, PerformanceObserver } from 'node:perf_hooks';
import { packageVersion } from './build.ts';
import type { Metrics } from './metrics.ts';

const RESOLUTION_MS = 20;
const WINDOW_MS = 15_000;

/** What this process costs, and whether it keeps up. Returns how to stop watching. */
export function watchProcess(metrics: Metrics): () => void {
  const version = packageVersion();
  const startedAt = Date.now() / 1_000 - process.uptime();
  const lag = watchLag();
  const collected = metrics.counter('nodejs_gc_seconds_total');
  const observer = new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) collected.value += duration / 1_000;
  });
  observer.observe({ entryTypes: ['gc'] });
  metrics.collect(async (set) => {
    const { user, system } = process.cpuUsage();
    const { rss, heapUsed, heapTotal } = process.memoryUsage();
    set('gatehouse_build_info', 1, version, process.version);
    set('gatehouse_event_loop_lag_seconds', lag.seconds());
    set('process_cpu_seconds_total', (user + system) / 1e6);
    set('process_resident_memory_bytes', rss);
    set('process_start_time_seconds', startedAt);
    set('nodejs_heap_size_used_bytes', heapUsed);
    set('nodejs_heap_size_total_bytes', heapTotal);
    set('process_open_fds', await openFiles());
  });
  return () => {
    observer.disconnect();
    lag.stop();
  };
}

/** Undefined where nobody can tell. */
const openFiles = (): Promise<number | undefined> =>
  readdir('/proc/self/fd').then(
    // One of them is the folder itself.
    (files) => files.length - 1,
    () => undefined,
  );

/** The longest delay of this window and the one before: several may ask, at any time, and all see the same. */
function watchLag(): { readonly seconds: () => number; readonly stop: () => void } {
  const histogram = monitorEventLoopDelay({ resolution: RESOLUTION_MS });
  histogram.enable();
  let before = 0;
  const now = (): number => Math.max(0, histogram.max / 1e9 - RESOLUTION_MS / 1_000);
  const timer = setInterval(() => {
    before = now();
    histogram.reset();
  }, WINDOW_MS).unref();
  return {
    seconds: () => Math.max(before, now()),
    stop() {
      clearInterval(timer);
      histogram.disable();
    },
  };
}
