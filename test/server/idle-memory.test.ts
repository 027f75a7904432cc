import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { returnIdleMemory } from '../../src/server/idle-memory.ts';

let cpuMicroseconds = 0;
let collections: string[] = [];
const collect = (options: NodeJS.GCOptions): number => collections.push(options.type ?? 'major');

beforeEach(() => {
  cpuMicroseconds = 0;
  collections = [];
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  vi.spyOn(process, 'cpuUsage').mockImplementation((before) => ({
    user: cpuMicroseconds - (before?.user ?? 0),
    system: 0,
  }));
});
afterEach(() => void vi.useRealTimers().restoreAllMocks());

function pass(seconds: number, cpuFraction: number): void {
  for (let second = 0; second < seconds; second++) {
    cpuMicroseconds += cpuFraction * 1_000_000;
    vi.advanceTimersByTime(1_000);
  }
}

test('start-up is followed by one full collection, and an idle process by no other', () => {
  using _ = returnIdleMemory(collect);
  pass(1, 0.5);
  expect(collections).toEqual(['major']);
  pass(600, 0.001);
  expect(collections).toEqual(['major']);
});

test('a minute after a load, young collections return its memory, once', () => {
  using _ = returnIdleMemory(collect);
  pass(61, 0.5);
  pass(59, 0.001);
  expect(collections).toEqual(['major']);
  pass(60, 0.001);
  const minor = collections.slice(1);
  expect(minor.length).toBeGreaterThan(20);
  expect(new Set(minor)).toEqual(new Set(['minor']));
  pass(600, 0.001);
  expect(collections).toHaveLength(1 + minor.length);
});

test('a process that is used every half minute is not idle', () => {
  using _ = returnIdleMemory(collect);
  for (let round = 0; round < 20; round++) {
    pass(5, 0.1);
    pass(25, 0.001);
  }
  expect(collections).toEqual(['major']);
});

test('after it is disposed, nothing is collected', () => {
  const memory = returnIdleMemory(collect);
  memory[Symbol.dispose]();
  pass(120, 0.5);
  pass(120, 0);
  expect(collections).toEqual([]);
});
