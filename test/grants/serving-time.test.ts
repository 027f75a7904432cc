import { afterEach, beforeEach, expect, onTestFinished, test, vi } from 'vitest';
import { computeServedSeconds } from '../../src/domain/grant.ts';
import { OutageTracker } from '../../src/grants/outage-tracker.ts';
import { Fault, type FaultCode } from '../../src/ports/fault.ts';
import type { Store } from '../../src/ports/store.ts';
import { createMemoryStore } from '../support/memory-store.ts';
import { NOW, testClock } from '../support/store-fixtures.ts';

/** With a window of 1 s a mark is written every 125 ms and is valid for 250 ms. */
const retryWindow = 1;
const MARK_MS = 125;

beforeEach(() => void vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] }));
afterEach(() => void vi.useRealTimers());

/** The connection of a process to the store. */
interface Link {
  fails?: FaultCode | undefined;
  isUnconfirmed?: boolean;
}

/** Simulates processes on one store with a shared clock that only the test advances. */
function createProcesses() {
  const clock = testClock();
  const memoryStore = createMemoryStore({ now: clock.now });
  let isReachable = true;
  const createStore = (link: Link): Pick<Store, 'notes' | 'waitUntilDurable'> => ({
    ...memoryStore,
    notes: {
      ...memoryStore.notes,
      async read(id) {
        if (!isReachable) throw new Fault('store_unavailable', 'unreachable');
        if (link.fails !== undefined) throw new Fault(link.fails, 'not read');
        return memoryStore.notes.read(id);
      },
    },
    async waitUntilDurable() {
      if (link.isUnconfirmed === true) throw new Fault('store_unavailable', 'not confirmed');
    },
  });
  const startStopwatch = () => {
    const startedAt = clock.now();
    return () => clock.now() - startedAt;
  };
  const unreadable: string[] = [];
  const start = async (link: Link = {}): Promise<OutageTracker> => {
    const serving = new OutageTracker({
      store: createStore(link),
      retryWindow: () => retryWindow,
      startStopwatch,
      onUnreadable: ({ code }) => void unreadable.push(code),
    });
    onTestFinished(() => serving.stop());
    await serving.start();
    return serving;
  };
  /** Lets every running process write its next mark. */
  const writeMarks = async (): Promise<void> => void (await vi.advanceTimersByTimeAsync(MARK_MS));
  return {
    clock,
    start,
    writeMarks,
    unreadable,
    /** Advances the clock in steps in which marks are written, so that gatehouse serves all the time. */
    serve: async (seconds: number): Promise<void> => {
      for (let left = seconds; left > 0; left -= 0.2) {
        clock.at(clock.now() + Math.min(0.2, left));
        await writeMarks();
      }
    },
    setReachable: (value: boolean): void => {
      isReachable = value;
    },
    getServedSeconds: (serving: OutageTracker, since: number): number =>
      computeServedSeconds(since, clock.now(), serving.getOutages(clock.now(), since)),
  };
}

test('time in which marks are written counts as served', async () => {
  const { start, serve, getServedSeconds } = createProcesses();
  const serving = await start();
  await serve(2);
  expect(getServedSeconds(serving, NOW)).toBeCloseTo(2);
});

test('after a crash, time without a process does not count as served, except for the lease of its last mark', async () => {
  const { clock, start, serve, getServedSeconds } = createProcesses();
  const first = await start();
  await serve(1);
  const crashed = clock.now();
  await first.stop();
  clock.at(crashed + 3_600);
  const second = await start();
  // Never less than the time served: a window that had closed before the crash stays closed.
  expect(getServedSeconds(second, NOW)).toBeGreaterThanOrEqual(1);
  expect(getServedSeconds(second, NOW)).toBeLessThanOrEqual(1.25 + 1e-6);
  expect(getServedSeconds(second, crashed)).toBeLessThanOrEqual(0.25 + 1e-6);
  // Two crashes in a row add up.
  await second.stop();
  clock.at(clock.now() + 60);
  const third = await start();
  expect(getServedSeconds(third, crashed)).toBeLessThanOrEqual(0.5 + 1e-6);
});

test('a process that restarts while another one serves does not cause an outage', async () => {
  const { clock, start, serve, getServedSeconds } = createProcesses();
  await start();
  const restarted = await start();
  await restarted.stop();
  await serve(5);
  const restartedAgain = await start();
  expect(getServedSeconds(restartedAgain, NOW)).toBeCloseTo(clock.now() - NOW);
});

test('processes that start one after another know the same outage', async () => {
  const { clock, start, serve, getServedSeconds } = createProcesses();
  const before = await start();
  await before.stop();
  clock.at(NOW + 100);
  await start();
  await serve(0.4);
  const second = await start();
  expect(getServedSeconds(second, NOW)).toBeLessThanOrEqual(0.25 + 0.4 + 1e-6);
});

test('time in which the store is unreachable does not count as served, also afterwards', async () => {
  const { clock, start, writeMarks, setReachable, getServedSeconds } = createProcesses();
  const serving = await start();
  setReachable(false);
  clock.at(NOW + 30);
  expect(getServedSeconds(serving, NOW)).toBeLessThanOrEqual(0.25 + 1e-6);
  setReachable(true);
  await writeMarks();
  expect(getServedSeconds(serving, NOW)).toBeLessThanOrEqual(0.25 + 1e-6);
  // A process that starts later reads the outage from the store.
  expect(getServedSeconds(await start(), NOW)).toBeLessThanOrEqual(0.25 + 1e-6);
});

test('a process that cannot read the marks yet reports a temporary failure, not an outage or the absence of one', async () => {
  const { start, setReachable } = createProcesses();
  setReachable(false);
  const serving = await start();
  expect(() => serving.getOutages(NOW, NOW)).toThrow(Fault);
});

test('setting the clock back, or a restart with such a clock, records no outage', async () => {
  const { clock, start, serve, writeMarks, getServedSeconds } = createProcesses();
  const serving = await start();
  clock.at(NOW - 3_600);
  await writeMarks();
  await serve(2);
  expect(getServedSeconds(serving, NOW - 3_600)).toBeCloseTo(2);
  await serving.stop();
  clock.at(NOW - 7_200);
  expect(getServedSeconds(await start(), NOW - 7_200)).toBe(0);
  clock.at(NOW - 7_100);
  expect((await start()).getOutages(NOW - 7_100, NOW - 7_200)).toHaveLength(1);
});

test('a process that was partitioned while another one served does not extend the windows of rotations in that time', async () => {
  const { clock, start, serve, writeMarks, getServedSeconds } = createProcesses();
  const link: Link = {};
  await start();
  const partitioned = await start(link);
  await serve(1);
  const before = clock.now();
  link.fails = 'store_unavailable';
  await serve(5);
  const rotatedAt = clock.now();
  await serve(5);
  link.fails = undefined;
  // Reachable again, but whether others served is known only after the next mark.
  expect(() => getServedSeconds(partitioned, rotatedAt)).toThrow(Fault);
  link.isUnconfirmed = true;
  await writeMarks();
  expect(getServedSeconds(partitioned, rotatedAt)).toBeCloseTo(5);
  link.isUnconfirmed = false;
  await writeMarks();
  expect(getServedSeconds(partitioned, rotatedAt)).toBeCloseTo(5);
  // A response of this process that was lost just before can still be repeated.
  expect(getServedSeconds(partitioned, before)).toBeLessThanOrEqual(0.25 + 1e-6);
});

test('time in which writes are not confirmed does not count as served, also after rotations in that time', async () => {
  const { clock, start, serve, getServedSeconds } = createProcesses();
  const links: Link[] = [{}, {}];
  const trackers = [await start(links[0]), await start(links[1])];
  await serve(1);
  for (const link of links) link.isUnconfirmed = true;
  await serve(5);
  const rotatedAt = clock.now();
  await serve(5);
  for (const serving of trackers) expect(getServedSeconds(serving, rotatedAt)).toBeCloseTo(0);
  for (const link of links) link.isUnconfirmed = false;
  await serve(0.4);
  for (const serving of trackers) expect(getServedSeconds(serving, rotatedAt)).toBeLessThanOrEqual(0.4 + 1e-6);
});

test('an unreadable note is reported once and is not an outage, for running and for starting processes', async () => {
  const { clock, start, serve, getServedSeconds, unreadable } = createProcesses();
  const link: Link = {};
  const serving = await start(link);
  await serve(1);
  const rotatedAt = clock.now();
  link.fails = 'store_record_unreadable';
  await serve(5);
  expect(getServedSeconds(serving, rotatedAt)).toBeCloseTo(5);
  expect(unreadable).toEqual(['store_record_unreadable']);
  expect(getServedSeconds(await start(link), rotatedAt)).toBeCloseTo(5);
});
