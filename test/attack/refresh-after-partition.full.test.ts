import { expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { gatewaysOnRedis, redisUrl } from '../support/gateways-on-redis.ts';
import { until } from '../support/until.ts';

const { startGatewayOn, startServer, startRelay } = gatewaysOnRedis();

const WINDOW_MS = 1_000;
const change = (settings: SettingsInput): SettingsInput => ({
  ...settings,
  tokens: { ...settings.tokens, refresh: { retryWindow: `${WINDOW_MS / 1_000}s` } },
});
const waitMs = async (ms: number): Promise<void> => {
  const began = performance.now();
  await until(`${ms} ms have passed`, () => performance.now() - began > ms);
};

test('a refresh token spent at one replica does not work at another one that was partitioned from Redis meanwhile', async () => {
  const redis = await startServer();
  const relay = await startRelay(redis.port);
  const partitioned = await startGatewayOn(redisUrl(relay), {}, change);
  const other = await startGatewayOn(redisUrl(redis), {}, change);
  const grant = await other.grant();
  relay.set('black hole');
  await waitMs(WINDOW_MS);
  expect((await other.refresh(grant.refresh_token)).status).toBe(200);
  await waitMs(2 * WINDOW_MS);
  // Drop the stalled connections.
  relay.set('refuse');
  relay.set('pass');
  let reply = await partitioned.refresh(grant.refresh_token);
  await until('the error is not temporary', async () => {
    if (!/temporar/i.test(reply.text)) return true;
    reply = await partitioned.refresh(grant.refresh_token);
    return false;
  });
  expect([reply.status, reply.json['Error'], reply.json['refresh_token']]).toEqual([400, 'invalid_grant', undefined]);
  expect(other.auditEvents('refresh_retried')).toEqual([]);
  expect(partitioned.auditEvents('refresh_reuse')).toHaveLength(1);
});
