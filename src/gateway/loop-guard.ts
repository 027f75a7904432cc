import { openSync, readSync } from 'node:fs';
import { monitorEventLoopDelay } from 'node:perf_hooks';

/** Knows whether this process keeps up: one event loop serves everybody, and whoever holds it makes all others wait. */
export interface LoopGuard {
  /** It was held up longer than it may be, a moment ago. */
  isPressed(): boolean;
  stop(): void;
}

export interface LoopGuardOptions {
  /** The longest it may be held up. */
  readonly limitMs?: number;
  /** How long it must have kept up before it counts as free again. */
  readonly restMs?: number;
  readonly onChange?: (pressed: boolean, delayMs: number) => void;
  /** Total milliseconds this thread was runnable without being given a CPU. */
  readonly runQueueWait?: () => number;
}

const LOOK_MS = 100;
const RESOLUTION_MS = 20;

export function guardLoop({
  limitMs = 1_000,
  restMs = 2_000,
  onChange,
  runQueueWait = linuxRunQueueWait(),
}: LoopGuardOptions = {}): LoopGuard {
  const histogram = monitorEventLoopDelay({ resolution: RESOLUTION_MS });
  histogram.enable();
  let lookedAt = performance.now();
  let waited = runQueueWait();
  let pressedUntil = 0;
  let told = false;

  const tell = (delayMs: number): void => {
    const pressed = performance.now() < pressedUntil;
    if (pressed === told) return;
    told = pressed;
    onChange?.(pressed, Math.round(delayMs));
  };
  const look = (): void => {
    const now = performance.now();
    const waitedNow = runQueueWait();
    // Nanoseconds; the time since the last look counts too, since the histogram may not have seen the end of it.
    const stallMs = Math.max(histogram.max / 1e6, now - lookedAt - LOOK_MS);
    // Time in which other processes had the CPU is not load of this one. A part of it may be: its own threads and workers
    // compete for the CPU too, and a CPU limit counts as waiting. So at most three quarters are deducted.
    const delayMs = Math.max(stallMs - (waitedNow - waited), stallMs / 4);
    histogram.reset();
    lookedAt = now;
    waited = waitedNow;
    if (delayMs >= limitMs) pressedUntil = now + restMs;
    tell(delayMs);
  };
  const timer = setInterval(look, LOOK_MS).unref();
  return {
    isPressed() {
      // What waited while the loop was held may come before the timer has looked.
      if (performance.now() - lookedAt - LOOK_MS >= limitMs) look();
      return performance.now() < pressedUntil;
    },
    stop() {
      clearInterval(timer);
      histogram.disable();
    },
  };
}

/** From /proc/self/schedstat (Documentation/scheduler/sched-stats.rst); constant where there is none. */
export function linuxRunQueueWait(): () => number {
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
