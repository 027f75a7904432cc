import { expect, test } from 'vitest';
import { ClientAccount } from '../../src/listener/client-accounts.ts';
import { TurnQueue } from '../../src/listener/turn-queue.ts';
import { until } from '../support/until.ts';

const work = (ms: number): void => {
  const end = performance.now() + ms;
  while (performance.now() < end);
};

test('a few requests are never delayed', () => {
  const queue = new TurnQueue(() => true);
  for (let count = 0; count < 31; count += 1) {
    expect(queue.count()).toBe(false);
    work(1);
  }
  expect(queue.isOver).toBe(false);
});

test('an iteration of the event loop ends after some milliseconds of requests, and the next one begins anew', async () => {
  const queue = new TurnQueue(() => true);
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
  const queue = new TurnQueue(() => true);
  const [greedy, other] = [new ClientAccount('greedy'), new ClientAccount('other')];
  const order: string[] = [];
  const task = (name: string) => (): boolean => {
    work(1);
    order.push(name);
    return true;
  };
  for (let count = 0; count < 20; count += 1) queue.defer(greedy, task('greedy'));
  queue.defer(other, task('other'));
  queue.defer(other, task('other'));
  await until('all have been served', () => order.length === 22);
  expect(order.slice(0, 4)).toEqual(['greedy', 'other', 'greedy', 'other']);
});

test('a task may wait for another turn', async () => {
  const queue = new TurnQueue(() => true);
  const account = new ClientAccount('one');
  let turns = 0;
  const task = (): boolean => {
    turns += 1;
    if (turns < 10) queue.defer(account, task);
    return true;
  };
  queue.defer(account, task);
  await until('it has had all its turns', () => turns === 10);
});

test('tasks that cause work later are spread over several iterations of the event loop', async () => {
  const queue = new TurnQueue(() => true);
  const account = new ClientAccount('one');
  let begun = 0;
  for (let count = 0; count < 20; count += 1) queue.defer(account, () => (begun += 1) > 0, 1.5);
  await new Promise((resolve) => setImmediate(resolve));
  expect(begun).toBeGreaterThan(0);
  expect(begun).toBeLessThan(5);
  await until('all have begun', () => begun === 20);
});

test('tasks that have nothing to do any more take no turn', async () => {
  const queue = new TurnQueue(() => true);
  const account = new ClientAccount('one');
  const order: string[] = [];
  for (let count = 0; count < 1_000; count += 1) queue.defer(account, () => false);
  queue.defer(account, () => order.push('last') > 0);
  await new Promise((resolve) => setImmediate(() => setImmediate(resolve)));
  expect(order).toEqual(['last']);
});
