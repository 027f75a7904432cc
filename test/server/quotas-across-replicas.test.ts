import { Redis } from 'ioredis';
import { expect, test } from 'vitest';
import { atIndex, gatewayFleets } from '../support/gateway-fleet.ts';
import type { TestGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';

const { redis: common, fleet } = gatewayFleets();

const BURST = 20;
const withLimit = {
  limits: { shared: true, routes: `${BURST}/h` },
  routes: [{ path: '/files/**', requires: 'files:read' }],
};
const isAllowed = async (gateway: TestGateway, token: string): Promise<boolean> =>
  (await gateway.api('/files/a', token)).status === 200;

test('replicas share a quota: a burst on all of them lets through at most one burst each, and then nothing', async () => {
  const { all } = await fleet(3, withLimit);
  const { access_token: token } = await atIndex(all, 0).grant();
  const { access_token: other } = await atIndex(all, 0).grant({ user: 'bob' });
  const counts = await Promise.all(
    all.map(async (gateway) => {
      let count = 0;
      for (let index = 0; index < 2 * BURST; index += 1) if (await isAllowed(gateway, token)) count += 1;
      return count;
    }),
  );
  const allowed = counts.reduce((sum, count) => sum + count);
  expect(allowed).toBeGreaterThanOrEqual(BURST);
  expect(allowed).toBeLessThanOrEqual(3 * BURST);
  for (const gateway of all)
    await until('the replica knows that nothing is left', async () => !(await isAllowed(gateway, token)));
  // Another caller is not affected.
  for (const gateway of all) expect(await isAllowed(gateway, other)).toBe(true);

  const redis = new Redis(common().port);
  try {
    const found = (await redis.keys('fleet*')).filter((key) => key.endsWith(':l'));
    expect(found.length).toBeGreaterThanOrEqual(1);
    expect(`${found.join()} ${(await redis.mget(found)).join()}`).not.toMatch(/local|5f0c|files/);
    for (const key of found) expect(await redis.pttl(key)).toBeGreaterThan(0);
  } finally {
    redis.disconnect();
  }
});

test('a caller on one replica gets exactly its limit, and the others learn of it', async () => {
  const { all } = await fleet(2, withLimit);
  const { access_token: token } = await atIndex(all, 0).grant();
  let allowed = 0;
  for (let index = 0; index < 2 * BURST; index += 1) if (await isAllowed(atIndex(all, 0), token)) allowed += 1;
  expect(allowed).toBe(BURST);
  await until('the other replica knows', async () => !(await isAllowed(atIndex(all, 1), token)));
});

test('requests do not wait for Redis', async () => {
  const { all, relays } = await fleet(2, withLimit);
  const { access_token: token } = await atIndex(all, 0).grant();
  for (const relay of relays) relay.set('black hole');
  for (const gateway of all) expect(await isAllowed(gateway, token)).toBe(true);
});
