import { createServer, type Socket } from 'node:net';
import { expect, onTestFinished, test } from 'vitest';
import { connectRedis } from '../../../src/stores/redis/client.ts';
import { ReplyLimiter } from '../../../src/stores/redis/reply-limits.ts';
import { listenTcp } from '../../support/tcp-server.ts';
import { until } from '../../support/until.ts';

/** A server that speaks as much of the protocol as ioredis needs to be ready, and then sends what a test wants. */
async function startScriptedServer() {
  const state: { reply: string; connections: number } = { reply: '', connections: 0 };
  const server = createServer((socket: Socket) => {
    state.connections += 1;
    socket.on('data', (data: Buffer) => {
      const commands = data.toString('latin1').split(/(?=^\*\d+\r\n\$)/m);
      for (const command of commands) {
        if (/\r\ninfo\r\n/i.test(command)) socket.write('$12\r\nredis_mode:x\r\n');
        else if (/\r\ntime\r\n/i.test(command)) socket.write('*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n');
        else if (/\r\nget\r\n/i.test(command)) socket.write(state.reply, 'latin1');
        else socket.write('+OK\r\n');
      }
    });
  });
  const { port, close } = await listenTcp(server);
  onTestFinished(close);
  return { state, port };
}

test.each([
  ['a null that belongs to no command', '$1\r\na\r\n$-1\r\n'],
  ['a push message without a type', '>1\r\n_\r\n'],
  ['a subscription to nothing', '>1\r\n$9\r\nsubscribe\r\n'],
  ['an array of 33,554,432 elements', '*33554432\r\n'],
  ['nested arrays of a million elements', '*999999\r\n'.repeat(1_000)],
  ['a map of 2³² entries', '%4294967296\r\n'],
  ['deeply nested arrays', '*1\r\n'.repeat(300_000)],
  ['an array of negative length', '*-5\r\n'],
  ['a string of 100 GB', '$100000000000\r\nx'],
  ['an unknown type', 'HTTP/1.1 400 Bad Request\r\n\r\n'],
])('S23 %s closes the connection, and the next command succeeds on a new one', async (_what, reply) => {
  const { state, port } = await startScriptedServer();
  const client = await connectRedis({ url: `redis://127.0.0.1:${port}/0`, commandTimeout: 1_000, name: 'x' });
  onTestFinished(() => client.close());
  state.reply = reply;
  await client.execute((redis) => redis.get('a')).catch(() => {});
  state.reply = '$2\r\nok\r\n';
  await until('a command succeeds', async () =>
    client
      .execute((redis) => redis.get('a'))
      .then(
        (value) => value === 'ok',
        () => false,
      ),
  );
  expect(state.connections).toBeGreaterThan(0);
});

test('replies of any kind pass the limiter, in any parts', () => {
  const replies = [
    '+OK\r\n-ERR 12345678 wrong\r\n:-42\r\n$-1\r\n*-1\r\n$0\r\n\r\n*0\r\n_\r\n#t\r\n,3.5e10\r\n(123\r\n',
    '*3\r\n$3\r\nabc\r\n*2\r\n:1\r\n:2\r\n%1\r\n$1\r\nk\r\n~2\r\n:1\r\n:2\r\n=7\r\ntxt:abc\r\n!5\r\nERR x\r\n',
    `$100\r\n${'*99999999\r\n'.repeat(10).slice(0, 100)}\r\n`,
  ].join('');
  const whole = new ReplyLimiter();
  for (let round = 0; round < 1_000; round += 1) whole.push(Buffer.from(replies));
  const bytewise = new ReplyLimiter();
  for (const byte of Buffer.from(replies.repeat(20))) bytewise.push(Buffer.of(byte));
  const half = new ReplyLimiter();
  half.push(Buffer.from('*2\r\n*900000\r\n'));
  expect(() => half.push(Buffer.from(':1\r\n'.repeat(900_000) + '*900000\r\n'))).toThrow('too large');
});
