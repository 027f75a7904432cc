import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { expect, onTestFinished, test } from 'vitest';
import { startTestListener } from '../support/listener.ts';
import { until } from '../support/until.ts';

const REQUEST = 'GET / HTTP/1.1\r\nHost: localhost\r\n\r\n';

/** A connection that was used for one request. */
async function openUsed(port: number): Promise<Socket> {
  const socket = connect(port, '127.0.0.1').on('error', () => {});
  onTestFinished(() => void socket.destroy());
  socket.write(REQUEST);
  await once(socket, 'data');
  return socket.resume();
}

test('a burst of connections is served, then the newest idle ones are closed, and busy ones stay', async () => {
  const held = Promise.withResolvers<void>();
  const listener = await startTestListener({
    limits: { headers: 16_384, headerTimeout: 60, connections: 100, keptConnections: 4 },
    onRequest: async ({ request }) => {
      if (request.url === '/held') await held.promise;
      return { status: 200, headers: {}, body: 'ok' };
    },
  });
  onTestFinished(() => listener.close());
  const kept: Socket[] = [];
  for (let index = 0; index < 3; index += 1) kept.push(await openUsed(listener.port));
  const burst: Socket[] = [];
  for (let index = 0; index < 20; index += 1) burst.push(await openUsed(listener.port));
  const busy = connect(listener.port, '127.0.0.1').on('error', () => {});
  onTestFinished(() => void busy.destroy());
  busy.write(REQUEST.replace(' / ', ' /held '));
  await until('all but four connections are closed', () => burst.filter(({ closed }) => closed).length === 20, 30);
  expect(kept.map(({ closed }) => closed)).toEqual([false, false, false]);
  held.resolve();
  const [response] = (await once(busy, 'data')) as [Buffer];
  expect(response.toString()).toMatch(/^HTTP\/1\.1 200/);
}, 60_000);
