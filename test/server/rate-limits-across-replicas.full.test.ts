import { Redis } from 'ioredis';
import { expect, test, vi } from 'vitest';
import { atIndex, gatewayFleets, rates } from '../support/gateway-fleet.ts';
import type { Reply, TestGateway } from '../support/test-gateway.ts';

const { redis: common, fleet } = gatewayFleets();

/** The token API returns 400 for every error; only rate limits have a long `Retry-After`. */
const isLimited = ({ headers }: Pick<Reply, 'headers'>): boolean => Number(headers['retry-after'] ?? 0) > 60;
const isRequestLimited = async (gateway: TestGateway, from: string): Promise<boolean> =>
  isLimited(
    await gateway.post(
      '/Authorize/Token',
      { client_id: 'report-runner', refresh_token: 'ghr_none' },
      { headers: { 'x-forwarded-for': from } },
    ),
  );

/** What two gateways may accept beyond a limit of 20: each half a bucket, before it knows what the other has accepted. */
const MAX_EXCESS = 20;

async function countAccepted(gateways: readonly TestGateway[], requests: number, from: string): Promise<number> {
  let accepted = 0;
  for (let index = 0; index < requests; index += 1)
    if (!(await isRequestLimited(atIndex(gateways, index), from))) accepted += 1;
  return accepted;
}

test('a rate limit applies across two gateways, per address, and nothing in Redis contains the address', async () => {
  const { all } = await fleet(2, rates({ token: '20/h' }));
  const accepted = await countAccepted(all, 80, '203.0.113.7');
  expect(accepted).toBeGreaterThanOrEqual(20);
  expect(accepted).toBeLessThanOrEqual(20 + MAX_EXCESS);
  for (const gateway of all) expect(await isRequestLimited(gateway, '203.0.113.7')).toBe(true);
  expect(await isRequestLimited(atIndex(all, 0), '203.0.113.8')).toBe(false);

  const redis = new Redis(common().port);
  try {
    const found = (await redis.keys('fleet*')).filter((key) => key.endsWith(':l'));
    expect(found.length).toBeGreaterThanOrEqual(2);
    const values = await redis.mget(found);
    expect(`${found.join()} ${values.join()}`).not.toMatch(/203\.0\.113|token/);
    for (const key of found) expect(await redis.pttl(key)).toBeGreaterThan(0);
  } finally {
    redis.disconnect();
  }
});

test('a simultaneous burst at all gateways exceeds the limit by at most half a bucket per gateway, and the excess is paid back', async () => {
  const { all } = await fleet(3, rates({ token: '30/h' }));
  const burst = await Promise.all(
    Array.from({ length: 120 }, (_, index) => isRequestLimited(atIndex(all, index), '203.0.113.9')),
  );
  const accepted = burst.filter((isLimitedRequest) => !isLimitedRequest).length;
  expect(accepted).toBeGreaterThanOrEqual(30);
  // Each gateway accepts at most half a bucket before it consults Redis.
  expect(accepted).toBeLessThanOrEqual(30 + 3 * 15);
  expect(await isRequestLimited(atIndex(all, 0), '203.0.113.9')).toBe(true);
});

test('without Redis, each gateway enforces its share of the limit', async () => {
  const { all, relays } = await fleet(2, rates({ token: '20/h' }));
  for (const relay of relays) relay.set('refuse');
  for (const gateway of all) {
    let accepted = 0;
    for (let index = 0; index < 25; index += 1) if (!(await isRequestLimited(gateway, '203.0.113.7'))) accepted += 1;
    expect(accepted).toBe(10);
  }
  for (const relay of relays) relay.set('pass');
  // When Redis is reachable again, they share one limit for a new address: one gateway accepts more than its share.
  await vi.waitFor(() => atIndex(all, 0).server.store.probe(), { timeout: 20_000 });
  await vi.waitFor(() => atIndex(all, 1).server.store.probe(), { timeout: 20_000 });
  const first = await countAccepted(all.slice(0, 1), 60, '203.0.113.77');
  expect(first).toBeGreaterThan(10);
  expect(first + (await countAccepted(all.slice(1), 60, '203.0.113.77'))).toBeLessThanOrEqual(20 + MAX_EXCESS);
});

test('D18 pending device requests are limited over two gateways, in all, per client and per address', async () => {
  const { all } = await fleet(2, { device: { maxPending: 30, maxPendingPerClient: 20 } });
  const requestDevice = async (index: number, clientId: string, from: string): Promise<number> =>
    (
      await atIndex(all, index).post(
        '/Authorize/Device',
        { client_id: clientId, scope: 'files:read' },
        { headers: { 'x-forwarded-for': from } },
      )
    ).status;
  const many = async (count: number, clientId: string, from: (index: number) => string): Promise<number> => {
    const statuses: number[] = [];
    for (let index = 0; index < count; index += 1) statuses.push(await requestDevice(index, clientId, from(index)));
    return statuses.filter((status) => status === 200).length;
  };
  expect(await many(10, 'report-runner', () => '203.0.113.30')).toBe(2);
  // One more than the limit: the address with two requests loses one.
  expect(await many(40, 'report-runner', (index) => `203.0.113.${index + 40}`)).toBe(19);
  expect(await many(30, 'other-app', (index) => `203.0.113.${index + 100}`)).toBe(10);
  // At the limit, a request from a new network is accepted by either gateway.
  expect([
    await requestDevice(0, 'report-runner', '198.51.100.7'),
    await requestDevice(1, 'other-app', '192.0.2.7'),
  ]).toEqual([200, 200]);
  expect(await requestDevice(0, 'report-runner', '203.0.113.90')).toBe(429);
  const evicted = all.flatMap((gateway) => gateway.auditEvents('device_evicted'));
  expect(evicted.map(({ from }) => String(from)).every((from) => from.startsWith('203.0.113.'))).toBe(true);
});
