import { spawnSync } from 'node:child_process';
import { afterEach, describe, expect, test } from 'vitest';
import { connectRedis, type RedisClient } from '../../../src/stores/redis/client.ts';
import { freePort } from '../../support/ports.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import { REDIS_TIMEOUT_MS } from '../../support/test-gateway.ts';
import { until } from '../../support/until.ts';

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of cleanups.splice(0).toReversed()) await close();
});

const startServer = async (port?: number): Promise<RedisServer> => {
  const server = await startRedis([], port === undefined ? {} : { port });
  cleanups.push(() => server.stop());
  return server;
};

/** Counts attempts to connect that failed. */
interface CountingClient extends RedisClient {
  readonly failures: () => number;
}
async function connectTo({ url }: RedisServer): Promise<CountingClient> {
  const client = await connectRedis({ url, commandTimeout: REDIS_TIMEOUT_MS, name: 'test' });
  cleanups.push(() => client.close());
  let failures = 0;
  client.redis.on('error', ({ message }: Error) => {
    if (message.includes('ECONNREFUSED')) failures += 1;
  });
  return { ...client, failures: () => failures };
}

const write = (client: RedisClient, key: string): Promise<string> =>
  client.execute((redis) => redis.set(key, 'written'));
const waitForFailures = ({ failures }: CountingClient): Promise<unknown> =>
  until('two attempts to connect fail', () => failures() >= 2);

/** Returns when the port refuses connections. Synchronous, so that the client cannot connect meanwhile. */
function killAtOnce({ pid, port }: RedisServer): void {
  const probe = `kill -9 ${pid}; while (exec 3<>/dev/tcp/127.0.0.1/${port}) 2>/dev/null; do :; done`;
  expect(spawnSync('bash', ['-c', probe], { timeout: 30_000 }).status).toBe(0);
}

describe('attempts to connect that fail while Redis is stopped', () => {
  test('S04 do not fail commands that wait for the successor of a demoted primary', async () => {
    const demoted = await startServer();
    const client = await connectTo(demoted);
    const primaryPort = await freePort();
    await client.execute((redis) => redis.replicaof('127.0.0.1', primaryPort));
    client.redis.once('close', () => killAtOnce(demoted));
    const commands = [write(client, 'the first')];
    client.redis.once('close', () => commands.push(write(client, 'after the close')));
    await waitForFailures(client);
    commands.push(write(client, 'after failed attempts'));
    const successor = await startServer(demoted.port);
    expect(await Promise.all(commands)).toEqual(['OK', 'OK', 'OK']);
    const keys = ['the first', 'after the close', 'after failed attempts'];
    expect(await (await connectTo(successor)).execute((redis) => redis.mget(keys))).toEqual(keys.map(() => 'written'));
  });

  test('do not keep the client from connecting when Redis is started again', async () => {
    const server = await startServer();
    const client = await connectTo(server);
    await server.kill();
    await waitForFailures(client);
    await expect(write(client, 'while it is stopped')).rejects.toMatchObject({ code: 'store_unavailable' });
    await startServer(server.port);
    await until('commands work', () => write(client, 'later').catch(() => undefined));
  });

  test('do not, even after ioredis has given up reconnecting', async () => {
    const server = await startServer();
    const client = await connectTo(server);
    client.redis.once('end', () => killAtOnce(server));
    // Without reconnecting, as after a failover that is announced while ioredis connects.
    client.redis.disconnect();
    await waitForFailures(client);
    await startServer(server.port);
    await until('commands work', () => write(client, 'later').catch(() => undefined));
  });
});

test('a command that comes when the connection has just been lost waits for the new one', async () => {
  const server = await startServer();
  const [client, admin] = [await connectTo(server), await connectTo(server)];
  const commands: Promise<string>[] = [];
  client.redis.once('close', () => commands.push(write(client, 'after the close')));
  await admin.execute((redis) => redis.call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes'));
  await until('the connection is lost', () => commands.length > 0);
  expect(await Promise.all(commands)).toEqual(['OK']);
});
