import { once } from 'node:events';
import { afterEach, expect, test } from 'vitest';
import { clientAccounts } from '../../../src/listener/client-accounts.ts';
import { until } from '../../support/until.ts';
import { GET, readUntil, useListeners } from '../open-listeners.ts';

/** RFC 9112 §9.3: whether a connection serves another request. */
const { connectPlain, listen } = useListeners();
const { limit } = clientAccounts;
afterEach(() => void (clientAccounts.limit = limit));

test('an empty line after the last request of a half-closed connection is no request', async () => {
  const listener = await listen({
    plain: true,
    limits: { headers: 16_384, headerTimeout: 1, connections: 100 },
    async onRequest() {
      await new Promise((resolve) => setTimeout(resolve, 100));
      return { status: 200, headers: {} };
    },
  });
  const socket = await connectPlain(listener.port);
  socket.end(`${GET}\r\n`);
  expect((await readUntil(socket)).match(/^HTTP\/1\.1 \d+/gm)).toEqual(['HTTP/1.1 200']);
});

test('a half-closed connection is closed after the response to a request whose body was not read', async () => {
  const before = clientAccounts.bytes;
  const listener = await listen({
    plain: true,
    async onRequest() {
      await new Promise((resolve) => setTimeout(resolve, 100));
      return { status: 200, headers: {} };
    },
  });
  const socket = await connectPlain(listener.port);
  socket.end('POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello');
  expect((await readUntil(socket)).match(/^HTTP\/1\.1 \d+/gm)).toEqual(['HTTP/1.1 200']);
  await until('nothing is held', () => clientAccounts.bytes === before);
}, 20_000);

test('the connection option close prevails over keep-alive on HTTP/1.0', async () => {
  const listener = await listen({ plain: true });
  const socket = await connectPlain(listener.port);
  socket.write('GET / HTTP/1.0\r\nConnection: keep-alive, close\r\n\r\n');
  const text = await readUntil(socket, /\r\n\r\n/);
  expect(text).toContain('Connection: close\r\n');
});

test('a request that is refused because of memory is not processed', async () => {
  let requests = 0;
  const listener = await listen({
    plain: true,
    onRequest() {
      requests += 1;
      return { status: 200, headers: {} };
    },
  });
  const socket = await connectPlain(listener.port);
  clientAccounts.limit = 0;
  socket.write(GET);
  expect(await readUntil(socket, /\r\n\r\n/)).toMatch(/^HTTP\/1\.1 503 /);
  if (!socket.destroyed) await once(socket.resume(), 'close');
  expect(requests).toBe(0);
});
