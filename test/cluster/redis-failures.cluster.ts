import { execFileSync } from 'node:child_process';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { until } from '../support/until.ts';
import type { ServiceClient } from './client.ts';
import { countFailures, describeLoad, startLoad } from './load.ts';
import { createShop, gatewayValues, redisStore, type Shop, startGateway, waitForPods } from './shop.ts';

/** Redis in the cluster restarts, is killed, or cannot be reached. */
let shop: Shop;
let client: ServiceClient;

beforeAll(async () => {
  shop = await createShop('redis-failures');
  await startGateway(shop, { ...gatewayValues(shop.namespace), ...redisStore(shop.namespace) });
  client = await shop.connect('gate-gatehouse');
});
afterAll(() => shop?.remove());

const nft = (rules: string): void => void execFileSync('nft', [rules]);

/** Drops all packets to and from a pod. */
function partition(address: string): () => void {
  nft(
    `add table ip partition; add chain ip partition forward { type filter hook forward priority -10; }; add rule ip partition forward ip daddr ${address} drop; add rule ip partition forward ip saddr ${address} drop`,
  );
  return () => nft('delete table ip partition');
}

describe('while Redis is unreachable for less than `maxStaleness`', () => {
  test('tokens are validated from memory, grants are refused as temporary, and everything works afterwards', async () => {
    const kept = await client.grant();
    const revoked = await client.grant();
    expect((await client.revoke(revoked.access_token)).status).toBe(200);
    const [redis] = await waitForPods(shop, 'app=redis', 1);
    const address = await shop.addressOf('gate-gatehouse');
    const load = startLoad({ address, ca: shop.ca.pem, token: kept.access_token, rate: 80 });
    const reconnect = partition(redis?.address ?? '');
    try {
      const refused = await until('a refresh is refused', async () => {
        const reply = await client.refresh(kept.refresh_token);
        return reply.status !== 200 && reply;
      });
      expect(refused.json['Error']).toBe('invalid_request');
      expect(refused.headers['retry-after']).toMatch(/^\d+$/);
      expect((await client.get('/files/a', revoked.access_token)).status).toBe(401);
    } finally {
      reconnect();
    }
    await until('a refresh succeeds again', async () => (await client.refresh(kept.refresh_token)).status === 200);
    await load.more(200);
    const report = await load.stop();
    console.log(describeLoad('Redis partitioned', report));
    expect(countFailures(report)).toBe(0);
  });
});

test('when Redis restarts empty, revoked tokens stay revoked', async () => {
  const revoked = await client.grant();
  expect((await client.revoke(revoked.access_token)).status).toBe(200);
  const [redis] = await waitForPods(shop, 'app=redis', 1);
  await shop.kubectl(`delete pod ${redis?.name} --grace-period=0 --force`);
  const accepted: number[] = [];
  await until(
    'grants are issued again',
    async () => {
      accepted.push((await client.get('/files/a', revoked.access_token)).status);
      return client.grant().catch(() => undefined);
    },
    120,
  );
  accepted.push((await client.get('/files/a', revoked.access_token)).status);
  expect(accepted.filter((status) => status === 200)).toEqual([]);
});
