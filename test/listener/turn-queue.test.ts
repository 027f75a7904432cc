import { expect, test } from 'vitest';
import { ClientAccount } from '../../src/listener/client-accounts.ts';
import { TurnQueue } from '../../src/listener/turn-queue.ts';
import { until } from '../support/until.ts';

const work = (ms: number): void => {
  const end = performance.now() + ms;
  while (performance.now() < end);
};

test('a few requests are never delayed', () => {
  const queue = new TurnQueue();
  for (let count = 0; count < 31; count += 1) {
    expect(queue.count()).toBe(false);
    work(1);
  }
  expect(queue.isOver).toBe(false);
});

test('an iteration of the event loop ends after some milliseconds of requests, and the next one begins anew', async () => {
  const queue = new TurnQueue();
  let served = 0;
  do {
    work(1);
    served += 1;
  } while (!queue.count());
  expect(served).toBeGreaterThan(31);
  expect(served).toBeLessThan(60);
  expect(queue.isOver).toBe(true);
  await new Promise((resolve) => setImmediate(() => setImmediate(resolve)));
  expect(queue.isOver).toBe(false);
});

test('networks take turns, however much one of them has sent', async () => {
  const queue = new TurnQueue();
  const [greedy, other] = [new ClientAccount('greedy'), new ClientAccount('other')];
  const order: string[] = [];
  const task = (name: string) => (): void => {
    work(1);
    order.push(name);
  };
  for (let count = 0; count < 20; count += 1) queue.defer(greedy, task('greedy'));
  queue.defer(other, task('other'));
  queue.defer(other, task('other'));
  await until('all have been served', () => order.length === 22);
  expect(order.slice(0, 4)).toEqual(['greedy', 'other', 'greedy', 'other']);
  expect(greedy.getRecentTime()).toBeGreaterThan(other.getRecentTime());
});

test('a task may wait for another turn', async () => {
  const queue = new TurnQueue();
  const account = new ClientAccount('one');
  let turns = 0;
  const task = (): void => {
    turns += 1;
    if (turns < 10) queue.defer(account, task);
  };
  queue.defer(account, task);
  await until('it has had all its turns', () => turns === 10);
});
