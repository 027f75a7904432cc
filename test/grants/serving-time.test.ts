import { afterEach, beforeEach, expect, onTestFinished, test, vi } from 'vitest';
import { computeServedSeconds } from '../../src/domain/grant.ts';
import { OutageTracker } from '../../src/grants/outage-tracker.ts';
import { Fault, type FaultCode } from '../../src/ports/fault.ts';
import type { Store } from '../../src/ports/store.ts';
import { createMemoryStore } from '../support/memory-store.ts';
import { NOW, testClock } from '../support/store-fixtures.ts';

/** With a window of 1 s a mark is written every 125 ms and counts for 250 ms. */
const retryWindow = 1;
const MARK_MS = 125;

beforeEach(() => void vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] }));
afterEach(() => void vi.useRealTimers());

/** How one process reaches the store. */
interface Link {
  fails?: FaultCode | undefined;
  isUnconfirmed?: boolean;
}

/** Processes on one store, by a clock that only the test moves; each process measures by the same clock. */
function processes() {
  const clock = testClock();
  const kept = createMemoryStore({ now: clock.now });
  let isReachable = true;
  const storeBehind = (link: Link): Pick<Store, 'notes' | 'waitUntilDurable'> => ({
    ...kept,
    notes: {
      ...kept.notes,
      async read(id) {
        if (!isReachable) throw new Fault('store_unavailable', 'unreachable');
        if (link.fails !== undefined) throw new Fault(link.fails, 'not read');
        return kept.notes.read(id);
      },
    },
    async waitUntilDurable() {
      if (link.isUnconfirmed === true) throw new Fault('store_unavailable', 'not confirmed');
    },
  });
  const startStopwatch = () => {
    const began = clock.now();
    return () => clock.now() - began;
  };
  const unreadable: string[] = [];
  const start = async (link: Link = {}): Promise<OutageTracker> => {
    const serving = new OutageTracker({
      store: storeBehind(link),
      retryWindow: () => retryWindow,
      startStopwatch,
      onUnreadable: ({ code }) => void unreadable.push(code),
    });
    onTestFinished(() => serving.stop());
    await serving.start();
    return serving;
  };
  /** Every running process writes its next mark. */
  const marked = async (): Promise<void> => void (await vi.advanceTimersByTimeAsync(MARK_MS));
  return {
    clock,
    start,
    marked,
    unreadable,
    /** Moves the clock in steps in which marks are written: gatehouse serves all the time. */
    serve: async (seconds: number): Promise<void> => {
      for (let left = seconds; left > 0; left -= 0.2) {
        clock.at(clock.now() + Math.min(0.2, left));
        await marked();
      }
    },
    setReachable: (value: boolean): void => {
      isReachable = value;
    },
    served: (serving: OutageTracker, since: number): number =>
      computeServedSeconds(since, clock.now(), serving.getOutages(clock.now(), since)),
  };
}

test('time in which marks are written counts as served', async () => {
  const { start, serve, served } = processes();
  const serving = await start();
  await serve(2);
  expect(served(serving, NOW)).toBeCloseTo(2);
});

test('after a crash the time without a process does not count, except for the lease of its last mark', async () => {
  const { clock, start, serve, served } = processes();
  const first = await start();
  await serve(1);
  const crashed = clock.now();
  await first.stop();
  clock.at(crashed + 3_600);
  const second = await start();
  // Never less than what was served: a window that had closed before the crash stays closed.
  expect(served(second, NOW)).toBeGreaterThanOrEqual(1);
  expect(served(second, NOW)).toBeLessThanOrEqual(1.25 + 1e-6);
  expect(served(second, crashed)).toBeLessThanOrEqual(0.25 + 1e-6);
  // Two crashes in a row add up.
  await second.stop();
  clock.at(clock.now() + 60);
  const third = await start();
  expect(served(third, crashed)).toBeLessThanOrEqual(0.5 + 1e-6);
});

test('a process that restarts while another one serves makes no outage', async () => {
  const { clock, start, serve, served } = processes();
  await start();
  const restarted = await start();
  await restarted.stop();
  await serve(5);
  const again = await start();
  expect(served(again, NOW)).toBeCloseTo(clock.now() - NOW);
});

test('processes that start one after another know of the same outage', async () => {
  const { clock, start, serve, served } = processes();
  const before = await start();
  await before.stop();
  clock.at(NOW + 100);
  await start();
  await serve(0.4);
  const second = await start();
  expect(served(second, NOW)).toBeLessThanOrEqual(0.25 + 0.4 + 1e-6);
});

test('while the store is unreachable nothing counts as served, nor afterwards', async () => {
  const { clock, start, marked, setReachable, served } = processes();
  const serving = await start();
  setReachable(false);
  clock.at(NOW + 30);
  expect(served(serving, NOW)).toBeLessThanOrEqual(0.25 + 1e-6);
  setReachable(true);
  await marked();
  expect(served(serving, NOW)).toBeLessThanOrEqual(0.25 + 1e-6);
  // A process that starts later knows it from the store.
  expect(served(await start(), NOW)).toBeLessThanOrEqual(0.25 + 1e-6);
});

test('a process that cannot read the marks yet reports a temporary failure instead of an outage or none', async () => {
  const { start, setReachable } = processes();
  setReachable(false);
  const serving = await start();
  expect(() => serving.getOutages(NOW, NOW)).toThrow(Fault);
});

test('a clock that is set back, or a restart with such a clock, records no outage', async () => {
  const { clock, start, serve, marked, served } = processes();
  const serving = await start();
  clock.at(NOW - 3_600);
  await marked();
  await serve(2);
  expect(served(serving, NOW - 3_600)).toBeCloseTo(2);
  await serving.stop();
  clock.at(NOW - 7_200);
  expect(served(await start(), NOW - 7_200)).toBe(0);
  clock.at(NOW - 7_100);
  expect((await start()).getOutages(NOW - 7_100, NOW - 7_200)).toHaveLength(1);
});

test('a process that was cut off while another one served does not pause the windows of rotations from that time', async () => {
  const { clock, start, serve, marked, served } = processes();
  const link: Link = {};
  await start();
  const cutOff = await start(link);
  await serve(1);
  const before = clock.now();
  link.fails = 'store_unavailable';
  await serve(5);
  const rotatedAt = clock.now();
  await serve(5);
  link.fails = undefined;
  // Reachable again, but whether others served is known with the next mark only.
  expect(() => served(cutOff, rotatedAt)).toThrow(Fault);
  link.isUnconfirmed = true;
  await marked();
  expect(served(cutOff, rotatedAt)).toBeCloseTo(5);
  link.isUnconfirmed = false;
  await marked();
  expect(served(cutOff, rotatedAt)).toBeCloseTo(5);
  // A response of this process that got lost right before can still be repeated.
  expect(served(cutOff, before)).toBeLessThanOrEqual(0.25 + 1e-6);
});

test('while writes are not confirmed nothing counts as served, also after rotations from that time', async () => {
  const { clock, start, serve, served } = processes();
  const links: Link[] = [{}, {}];
  const [one, other] = [await start(links[0]), await start(links[1])];
  await serve(1);
  for (const link of links) link.isUnconfirmed = true;
  await serve(5);
  const rotatedAt = clock.now();
  await serve(5);
  for (const serving of [one, other]) expect(served(serving, rotatedAt)).toBeCloseTo(0);
  for (const link of links) link.isUnconfirmed = false;
  await serve(0.4);
  for (const serving of [one, other]) expect(served(serving, rotatedAt)).toBeLessThanOrEqual(0.4 + 1e-6);
});

test('an unreadable note is reported once and is not an outage, for running and for starting processes', async () => {
  const { clock, start, serve, served, unreadable } = processes();
  const link: Link = {};
  const serving = await start(link);
  await serve(1);
  const rotatedAt = clock.now();
  link.fails = 'store_record_unreadable';
  await serve(5);
  expect(served(serving, rotatedAt)).toBeCloseTo(5);
  expect(unreadable).toEqual(['store_record_unreadable']);
  expect(served(await start(link), rotatedAt)).toBeCloseTo(5);
});
