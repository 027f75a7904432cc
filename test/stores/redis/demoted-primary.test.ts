import { expect, test } from 'vitest';
import { connectRedis } from '../../../src/stores/redis/client.ts';
import { gatewaysOnRedis, redisUrl } from '../../support/gateways-on-redis.ts';
import { REDIS_TIMEOUT_MS } from '../../support/test-gateway.ts';

const { closeLater, connectTo, startRelay, startPair } = gatewaysOnRedis();

test('S04 commands sent while the client reconnects from a demoted primary to its successor are executed there', async () => {
  const { primary, replica } = await startPair();
  const relay = await startRelay(primary.port);
  const client = await connectRedis({
    url: redisUrl(relay),
    commandTimeout: REDIS_TIMEOUT_MS,
    name: 'test',
  });
  closeLater(() => client.close());
  relay.redirectNewConnections(replica.port);
  await connectTo(replica.port).replicaof('NO', 'ONE');
  await connectTo(primary.port).replicaof('127.0.0.1', replica.port);

  const set = (key: string): Promise<string> => client.execute((redis) => redis.set(key, 'written'));
  const commands: Promise<string>[] = [];
  // While there is no connection, and while the new one is being prepared.
  client.redis.once('close', () => commands.push(set('after the close')));
  client.redis.once('connect', () => commands.push(set('before ready')));
  commands.push(set('the first'));
  await commands[0];
  expect(await Promise.all(commands)).toEqual(['OK', 'OK', 'OK']);
  expect(await connectTo(replica.port).mget('the first', 'after the close', 'before ready')).toEqual([
    'written',
    'written',
    'written',
  ]);
});
