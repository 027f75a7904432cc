import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, onTestFinished, test } from 'vitest';
import { EarlyBytes } from '../../src/listener/half-close.ts';
import { stopReadingWhilePaused } from '../../src/listener/node-quirks/sockets.ts';
import { eventLoopTurns } from '../support/event-loop-turns.ts';
import { until } from '../support/until.ts';

/*
 * For each quirk, what Node does by itself and what it does with the quirk. If the first part of a test fails, Node has
 * changed and the quirk can be removed; if the second fails, the quirk no longer works.
 */

/** The server's and the client's side of a connection. */
async function openConnection(): Promise<{ accepted: Socket; client: Socket }> {
  const server = createServer({ pauseOnConnect: true, noDelay: true });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  onTestFinished(() => void server.close());
  const client = connect({ port: (server.address() as AddressInfo).port, host: '127.0.0.1', noDelay: true });
  onTestFinished(() => void client.destroy());
  const [accepted] = (await once(server, 'connection')) as [Socket];
  accepted.on('error', () => {});
  client.on('error', () => {});
  return { accepted, client };
}

/** Everything that the client receives until its connection is closed. */
async function readAll(client: Socket): Promise<string> {
  let text = '';
  client.on('data', (part: Buffer) => {
    text += part.toString('latin1');
  });
  await Promise.race([once(client, 'close'), sleep(5_000)]);
  return text;
}

test('stopReadingWhilePaused: a paused socket does not read on', async () => {
  const bufferWhilePaused = async (prepare: (socket: Socket) => void): Promise<number> => {
    const { accepted, client } = await openConnection();
    prepare(accepted);
    accepted.on('data', () => accepted.pause()).resume();
    client.write('first');
    await until('it was read', () => accepted.bytesRead === 5);
    for (let part = 0; part < 20; part += 1) {
      client.write('x');
      await eventLoopTurns(3);
    }
    return accepted.readableLength;
  };
  expect(await bufferWhilePaused(() => {})).toBe(20);
  expect(await bufferWhilePaused(stopReadingWhilePaused)).toBeLessThanOrEqual(2);
});

test.each([
  ['a text', (socket: Socket) => socket.end('HTTP/1.1 200 OK\r\n\r\nbody')],
  ['bytes', (socket: Socket) => socket.end(Buffer.from('HTTP/1.1 200 OK\r\n\r\nbody'))],
  ['two writes', (socket: Socket) => socket.write('HTTP/1.1 200 OK\r\n\r\n') && socket.end('body')],
])('EarlyBytes: bytes sent ahead of %s are not sent again', async (_, respond) => {
  const { accepted, client } = await openConnection();
  const early = new EarlyBytes(accepted, 'HTTP/1.1 ');
  for (let sent = 0; sent < 4; sent += 1) early.sendNext();
  respond(accepted);
  accepted.resume();
  expect(await readAll(client)).toBe('HTTP/1.1 200 OK\r\n\r\nbody');
});

test('EarlyBytes: a write that does not begin with them destroys the connection', async () => {
  const { accepted, client } = await openConnection();
  new EarlyBytes(accepted, 'HTTP/1.1 ').sendNext();
  accepted.end('something else');
  expect(await readAll(client)).toBe('H');
});
