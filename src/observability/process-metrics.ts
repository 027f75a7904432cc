import { readdir } from 'node:fs/promises';
import { monitorEventLoopDelay, PerformanceObserver } from 'node:perf_hooks';
import { readPackageVersion } from '../lib/package-version.ts';
import type { Metrics } from './metrics.ts';

const RESOLUTION_MS = 20;
const WINDOW_MS = 15_000;

/** CPU, memory and event-loop metrics of this process. Returns a function that stops the collection. */
export function collectProcessMetrics(metrics: Metrics): () => void {
  const version = readPackageVersion();
  const startedAt = Date.now() / 1_000 - process.uptime();
  const lag = monitorEventLoopLag();
  const gcSeconds = metrics.counter('nodejs_gc_seconds_total');
  const observer = new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) gcSeconds.value += duration / 1_000;
  });
  observer.observe({ entryTypes: ['gc'] });
  metrics.addCollector(async (set) => {
    const { user, system } = process.cpuUsage();
    const { rss, heapUsed, heapTotal } = process.memoryUsage();
    set('gatehouse_build_info', 1, version, process.version);
    set('gatehouse_event_loop_lag_seconds', lag.seconds());
    set('process_cpu_seconds_total', (user + system) / 1e6);
    set('process_resident_memory_bytes', rss);
    set('process_start_time_seconds', startedAt);
    set('nodejs_heap_size_used_bytes', heapUsed);
    set('nodejs_heap_size_total_bytes', heapTotal);
    set('process_open_fds', await countOpenFiles());
  });
  return () => {
    observer.disconnect();
    lag.stop();
  };
}

/** Undefined where /proc is not available. */
const countOpenFiles = (): Promise<number | undefined> =>
  readdir('/proc/self/fd').then(
    // One of them is the descriptor of this folder.
    (files) => files.length - 1,
    () => undefined,
  );

/** The longest delay in this window and the previous one, so that several scrapers see the same peak. */
function monitorEventLoopLag(): { readonly seconds: () => number; readonly stop: () => void } {
  const histogram = monitorEventLoopDelay({ resolution: RESOLUTION_MS });
  histogram.enable();
  let previousMax = 0;
  const getCurrentMax = (): number => Math.max(0, histogram.max / 1e9 - RESOLUTION_MS / 1_000);
  const timer = setInterval(() => {
    previousMax = getCurrentMax();
    histogram.reset();
  }, WINDOW_MS).unref();
  return {
    seconds: () => Math.max(previousMax, getCurrentMax()),
    stop() {
      clearInterval(timer);
      histogram.disable();
    },
  };
}
