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
}

const LOOK_MS = 100;
const RESOLUTION_MS = 20;

export function guardLoop({ limitMs = 1_000, restMs = 2_000, onChange }: LoopGuardOptions = {}): LoopGuard {
  const histogram = monitorEventLoopDelay({ resolution: RESOLUTION_MS });
  histogram.enable();
  let lookedAt = performance.now();
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
    // Nanoseconds; the time since the last look counts too, since the histogram may not have seen the end of it.
    const delayMs = Math.max(histogram.max / 1e6, now - lookedAt - LOOK_MS);
    histogram.reset();
    lookedAt = now;
    if (delayMs >= limitMs) pressedUntil = now + restMs;
    tell(delayMs);
  };
  const timer = setInterval(look, LOOK_MS).unref();
  return {
    isPressed() {
      const now = performance.now();
      // What waited while the loop was held may come before the timer has looked.
      return now < pressedUntil || now - lookedAt - LOOK_MS >= limitMs;
    },
    stop() {
      clearInterval(timer);
      histogram.disable();
    },
  };
}
