import { once } from 'node:events';
import { expect, test, vi } from 'vitest';
import { clientAccounts } from '../../src/listener/client-accounts.ts';
import { turnQueue } from '../../src/listener/turn-queue.ts';
import { until } from '../support/until.ts';
import { readUntil, useListeners } from './open-listeners.ts';

/** Requests that wait for the turn of their network, because one iteration of the event loop has had enough. */
const { connectPlain, listen } = useListeners();

const work = (ms: number): void => {
  const end = performance.now() + ms;
  while (performance.now() < end);
};
const createRequests = (from: number, to: number): string =>
  Array.from(
    { length: to - from },
    (_, index) => `PUT /${from + index} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n`,
  ).join('');

test('H18 pipelined requests are processed in their order, also if some of them wait', async () => {
  const order: number[] = [];
  const listener = await listen({
    plain: true,
    onRequest: ({ request }) => {
      order.push(Number(request.url.slice(1)));
      work(1);
      return { status: 200, headers: {}, body: 'x' };
    },
  });
  const socket = await connectPlain(listener.port);
  socket.resume().write(createRequests(0, 100));
  await until('some have been processed', () => order.length > 40);
  socket.write(createRequests(100, 110));
  await until('all have been processed', () => order.length === 110);
  expect(order).toEqual(Array.from({ length: 110 }, (_, index) => index));
});

test('H18 no request that waits is processed after a response that closes the connection', async () => {
  const order: number[] = [];
  const listener = await listen({
    plain: true,
    onRequest: ({ request }) => {
      const number = Number(request.url.slice(1));
      order.push(number);
      work(1);
      return { status: 200, headers: {}, body: 'x', close: number === 60 };
    },
  });
  const socket = await connectPlain(listener.port);
  socket.resume().write(createRequests(0, 100));
  await once(socket, 'close');
  expect(order).toEqual(Array.from({ length: 61 }, (_, index) => index));
});

test('an authorized request is no longer charged to its network', async () => {
  const before = clientAccounts.bytes;
  let pending = 0;
  const listener = await listen({
    plain: true,
    onRequest: (context) => {
      context.hold(1_000_000);
      context.markAuthorized();
      pending += 1;
      return new Promise(() => {});
    },
  });
  const socket = await connectPlain(listener.port);
  socket.write('GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n');
  await until('it is pending', () => pending === 1);
  expect(clientAccounts.bytes - before).toBeLessThan(100_000);
});

test('pipelined requests that wait for an earlier one are charged to their network', async () => {
  const before = clientAccounts.bytes;
  let pending = 0;
  const listener = await listen({
    plain: true,
    onRequest: () => {
      pending += 1;
      return new Promise(() => {});
    },
  });
  const socket = await connectPlain(listener.port);
  socket.write(createRequests(0, 700));
  await until('the first is pending', () => pending === 1);
  expect(clientAccounts.bytes - before).toBeGreaterThan(30_000);
});

test('a head that is not complete after its turn gets 408, also if headerTimeout has passed meanwhile', async () => {
  const listener = await listen({
    plain: true,
    limits: { headers: 16_384, headerTimeout: 1, connections: 100 },
  });
  const socket = await connectPlain(listener.port);
  const isOver = vi.spyOn(turnQueue, 'isOver', 'get').mockReturnValue(true);
  const defer = vi.spyOn(turnQueue, 'defer').mockImplementation(() => {});
  socket.write('GET / HTTP/1.1\r\n');
  await until('it waits', () => defer.mock.calls.length === 1);
  await new Promise((resolve) => setTimeout(resolve, 1_500));
  const [, run] = defer.mock.calls[0] ?? [];
  isOver.mockRestore();
  defer.mockRestore();
  run?.();
  expect(await readUntil(socket, /\r\n\r\n/)).toMatch(/^HTTP\/1\.1 408 /);
}, 20_000);
