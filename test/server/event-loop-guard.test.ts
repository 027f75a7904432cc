import { expect, onTestFinished, test } from 'vitest';
import { createRunQueueWaitReader, startEventLoopMonitor } from '../../src/server/event-loop-monitor.ts';

const LIMIT_MS = 200;

/** Blocks the event loop and asks the guard before its timer has run. */
async function blocked(ms: number, waitedMs: number): Promise<boolean> {
  let waited = 0;
  const guard = startEventLoopMonitor({
    limitMs: LIMIT_MS,
    recoveryMs: 60_000,
    readRunQueueWait: () => waited,
  });
  onTestFinished(() => guard.stop());
  await new Promise(setImmediate);
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
  waited = waitedMs;
  return guard.isOverloaded();
}

test('X14 an event loop blocked by this process counts as overload', async () => {
  expect(await blocked(500, 0)).toBe(true);
});

test('X14 a process that was given no CPU is not overloaded: what waited for it is served', async () => {
  expect(await blocked(500, 60_000)).toBe(false);
});

test('X14 a stall of four times the limit counts as overload, whichever process had the CPU', async () => {
  expect(await blocked(4 * LIMIT_MS + 200, 60_000)).toBe(true);
});

test.runIf(process.platform === 'linux')(
  'X14 Linux reports the time a thread waits for a CPU, without its own work and its sleep',
  () => {
    const wait = createRunQueueWaitReader();
    const began = performance.now();
    const cpu = process.threadCpuUsage();
    const from = wait();
    while (performance.now() - began < 100);
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 300);
    const waited = wait() - from;
    const used = process.threadCpuUsage(cpu);
    const elapsed = performance.now() - began;
    expect(waited).toBeGreaterThanOrEqual(0);
    expect(waited).toBeLessThanOrEqual(elapsed - 300 - (used.user + used.system) / 1_000 + 20);
  },
);
