import { once } from 'node:events';
import { expect, test } from 'vitest';
import { clientAccounts } from '../../src/listener/client-accounts.ts';
import { until } from '../support/until.ts';
import { useListeners } from './open-listeners.ts';

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
    onRequest: ({ request, response }) => {
      order.push(Number(request.url?.slice(1)));
      work(1);
      response.end('x');
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
    onRequest: ({ request, response }) => {
      const number = Number(request.url?.slice(1));
      order.push(number);
      work(1);
      if (number === 60) response.shouldKeepAlive = false;
      response.end('x');
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
    },
  });
  const socket = await connectPlain(listener.port);
  socket.write('GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n');
  await until('it is pending', () => pending === 1);
  expect(clientAccounts.bytes - before).toBeLessThan(100_000);
});
