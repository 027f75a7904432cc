import { expect, onTestFinished, test } from 'vitest';
import { createRunQueueWaitReader, startEventLoopMonitor } from '../../src/server/event-loop-monitor.ts';

const LIMIT_MS = 200;

/** Blocks the event loop and reads the monitor before its timer has fired. */
async function isOverloadedAfterBlocking(ms: number, waitedMs: number): Promise<boolean> {
  let waited = 0;
  const monitor = startEventLoopMonitor({
    limitMs: LIMIT_MS,
    recoveryMs: 60_000,
    readRunQueueWait: () => waited,
  });
  onTestFinished(() => monitor.stop());
  await new Promise(setImmediate);
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
  waited = waitedMs;
  return monitor.isOverloaded();
}

test('X14 an event loop blocked by this process counts as overload', async () => {
  expect(await isOverloadedAfterBlocking(500, 0)).toBe(true);
});

test('X14 a process that got no CPU time does not count as overloaded, and serves the waiting requests', async () => {
  expect(await isOverloadedAfterBlocking(500, 60_000)).toBe(false);
});

test('X14 a stall of four times the limit counts as overload even if the process got no CPU time', async () => {
  expect(await isOverloadedAfterBlocking(4 * LIMIT_MS + 200, 60_000)).toBe(true);
});

test.runIf(process.platform === 'linux')('X14 the run-queue wait on Linux excludes CPU time and sleep', () => {
  const readWait = createRunQueueWaitReader();
  const began = performance.now();
  const cpu = process.threadCpuUsage();
  const from = readWait();
  while (performance.now() - began < 100);
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 300);
  const waited = readWait() - from;
  const used = process.threadCpuUsage(cpu);
  const elapsed = performance.now() - began;
  expect(waited).toBeGreaterThanOrEqual(0);
  expect(waited).toBeLessThanOrEqual(elapsed - 300 - (used.user + used.system) / 1_000 + 20);
});
